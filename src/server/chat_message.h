// An answer as the chat routes hand it out: text, thoughts and calls.
#pragma once

#include "engine/generate.h"
#include "text/chat_output.h"

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace mlxcel::server {

struct ToolCall {
  std::string id, name, arguments;
};

// Reads one answer and remembers all of it. Calls whose notation has no id get
// one: "call_" and random letters, or another prefix.
class ChatMessage {
 public:
  explicit ChatMessage(
      const ChatOutputOptions& options, std::string_view id_prefix = "call_");

  // The deltas of a piece, and at the end those of what was held back.
  std::vector<ChatDelta> push(std::string_view text, bool last);

  const std::string& content() const {
    return content_;
  }
  const std::string& reasoning() const {
    return reasoning_;
  }
  const std::vector<ToolCall>& calls() const {
    return calls_;
  }

 private:
  ChatOutput output_;
  std::string id_prefix_, content_, reasoning_;
  std::vector<ToolCall> calls_;
};

// OpenAI's {"role", "content", "reasoning_content", "tool_calls"}; `alias`: the
// thoughts stand under "reasoning" too, as some clients expect them.
nlohmann::json message_json(const ChatMessage& message, bool alias);
// The "delta" of a chunk.
nlohmann::json delta_json(const ChatDelta& delta, bool alias);
// "stop", "length" or "tool_calls".
const char* chat_finish_reason(const ChatMessage& message, StopKind stop);

}  // namespace mlxcel::server
