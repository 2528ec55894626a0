// What a model's answer consists of: its thoughts, its text and the tools it
// calls, told apart while the text arrives piece by piece.
#pragma once

#include "text/tool_formats.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace mlxcel {

struct ChatDelta {
  enum class Kind : uint8_t {
    content,
    reasoning,
    call,       // begins the call `index`; text is the function's name
    arguments,  // more JSON text of that call's arguments
  };
  Kind kind = Kind::content;
  std::string text;
  int index = -1;  // of the call
  std::string id;  // of a call whose notation carries one
};

enum class ReasoningFormat : uint8_t {
  none,             // thoughts stay in the text, marks and all
  deepseek,         // thoughts apart
  deepseek_legacy,  // both
};
// "none", "deepseek", "deepseek-legacy" or "auto". Throws UsageError.
ReasoningFormat reasoning_format(std::string_view name);

// How the prompt leaves off: in the middle of a thought or not.
enum class PromptEnd : uint8_t { answer, thinking };
PromptEnd end_of_prompt(std::string_view prompt, const Marks& reasoning);

struct ChatOutputOptions {
  const ToolFormat* format = nullptr;  // null: calls are plain text
  nlohmann::ordered_json tools;        // as in the request; types of arguments
  Marks marks = {"<think>", "</think>"};
  ReasoningFormat reasoning = ReasoningFormat::deepseek;
  PromptEnd prompt = PromptEnd::answer;
  bool parallel = true;  // else calls behind the first are left out
};

// The contents, thoughts and arguments of all deltas join to the whole's; no
// delta holds a part of a mark. A call that breaks off before its name is known
// is text.
class ChatOutput {
 public:
  explicit ChatOutput(ChatOutputOptions options);
  ~ChatOutput();
  ChatOutput(ChatOutput&&) noexcept;
  std::vector<ChatDelta> push(std::string_view text);
  std::vector<ChatDelta> finish();
  int num_calls() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mlxcel
