// Hides what a model thinks before its answer: a first part between <think>
// and </think>, also when the prompt opened it.
#pragma once

#include <string>
#include <string_view>

namespace mlxcel::cli {

class ReasoningFilter {
 public:
  // Passes everything through unless `hide`. `prompt` is the rendered prompt.
  ReasoningFilter(bool hide, std::string_view prompt);

  std::string push(std::string_view piece);
  std::string finish();

 private:
  enum class State { start, thinking, gap, answer };
  State state_;
  std::string held_;
};

}  // namespace mlxcel::cli
