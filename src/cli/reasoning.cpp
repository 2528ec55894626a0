#include "cli/reasoning.h"

#include "text/output_grammar.h"

namespace mlxcel::cli {

namespace {

Marks marks_of(const ChatTemplate* chat_template) {
  return find_reasoning_marks(
      chat_template != nullptr ? std::string_view(chat_template->source(false))
                               : std::string_view());
}

ReasoningSplitter make_splitter(
    bool hide, const ChatTemplate* chat_template, std::string_view prompt) {
  Marks marks = marks_of(chat_template);
  return ReasoningSplitter(
      marks,
      hide ? ReasoningFormat::deepseek : ReasoningFormat::none,
      end_of_prompt(prompt, marks));
}

}  // namespace

ReasoningFilter::ReasoningFilter(
    bool hide, const ChatTemplate* chat_template, std::string_view prompt)
    : splitter_(make_splitter(hide, chat_template, prompt)) {}

std::string ReasoningFilter::push(std::string_view piece) {
  std::string answer;
  splitter_.push(piece, &answer);
  return answer;
}

std::string ReasoningFilter::finish() {
  std::string answer;
  splitter_.finish(&answer);
  return answer;
}

GrammarSource grammar_of_answer(
    const GrammarSource& answer,
    const ChatTemplate* chat_template,
    std::string_view prompt,
    const Tokenizer& tokenizer) {
  Marks marks = marks_of(chat_template);
  return chat_template != nullptr &&
                 end_of_prompt(prompt, marks) == PromptEnd::thinking
             ? grammar_behind_thought(answer, marks, tokenizer)
             : answer;
}

}  // namespace mlxcel::cli
