// Hides what a model thinks before its answer, between its template's marks,
// also when the prompt opened them.
#pragma once

#include "text/chat_template.h"
#include "text/reasoning.h"

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

}  // namespace mlxcel::cli
