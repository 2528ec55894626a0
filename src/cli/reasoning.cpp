#include "cli/reasoning.h"

namespace mlxcel::cli {

namespace {

ReasoningSplitter make_splitter(
    bool hide, const ChatTemplate* chat_template, std::string_view prompt) {
  Marks marks = find_reasoning_marks(
      chat_template != nullptr ? std::string_view(chat_template->source(false))
                               : std::string_view());
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

}  // namespace mlxcel::cli
