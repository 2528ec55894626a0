// What a model thinks before its answer, between its template's marks, also
// when the prompt opened them: hidden, and free of the answer's grammar.
#pragma once

#include "text/chat_template.h"
#include "text/constraint.h"
#include "text/reasoning.h"
#include "text/tokenizer.h"

#include <string>
#include <string_view>

namespace mlxcel::cli {

class ReasoningFilter {
 public:
  // Passes everything through unless `hide`. `prompt` is the rendered prompt;
  // the template may be null.
  ReasoningFilter(
      bool hide, const ChatTemplate* chat_template, std::string_view prompt);

  std::string push(std::string_view piece);
  std::string finish();

 private:
  ReasoningSplitter splitter_;
};

// `answer` where the prompt leaves the answer's beginning to it; where it opens
// a thought, the thought goes first and is free. The template may be null.
GrammarSource grammar_of_answer(
    const GrammarSource& answer,
    const ChatTemplate* chat_template,
    std::string_view prompt,
    const Tokenizer& tokenizer);

}  // namespace mlxcel::cli
