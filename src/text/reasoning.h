// Splits what a model thinks from what it answers.
#pragma once

#include "text/chat_output.h"

namespace mlxcel {

class ReasoningSplitter {
 public:
  ReasoningSplitter(
      const Marks& marks, ReasoningFormat format, PromptEnd prompt);

  // The thoughts of the piece; what belongs to the answer is appended to
  // *answer.
  std::string push(std::string_view text, std::string* answer);
  std::string finish(std::string* answer);

 private:
  enum class State : uint8_t { start, begin, thinking, gap, answer };
  std::string thoughts(std::string* answer, bool all);

  std::string open_, close_;
  bool repeat_;  // the thoughts stay in the answer too
  State state_;
  std::string held_;
  bool begun_ = false;  // a thought was sent
  std::string spaces_;  // behind it, left out when it was the last
};

}  // namespace mlxcel
