#include "server/chat_message.h"

#include "server/openai.h"

namespace mlxcel::server {

using nlohmann::json;
using Kind = ChatDelta::Kind;

ChatMessage::ChatMessage(
    const ChatOutputOptions& options, std::string_view id_prefix)
    : output_(options), id_prefix_(id_prefix) {}

std::vector<ChatDelta> ChatMessage::push(std::string_view text, bool last) {
  std::vector<ChatDelta> deltas = output_.push(text);
  if (last) {
    for (ChatDelta& delta : output_.finish()) {
      deltas.push_back(std::move(delta));
    }
  }
  for (ChatDelta& delta : deltas) {
    switch (delta.kind) {
      case Kind::content:
        content_ += delta.text;
        break;
      case Kind::reasoning:
        reasoning_ += delta.text;
        break;
      case Kind::call:
        if (delta.id.empty()) {
          delta.id = new_id(id_prefix_);
        }
        calls_.push_back({delta.id, delta.text, ""});
        break;
      case Kind::arguments:
        calls_[size_t(delta.index)].arguments += delta.text;
        break;
    }
  }
  return deltas;
}

json message_json(const ChatMessage& message, bool alias) {
  json out = {{"role", "assistant"}, {"content", message.content()}};
  if (!message.reasoning().empty()) {
    out["reasoning_content"] = message.reasoning();
    if (alias) {
      out["reasoning"] = message.reasoning();
    }
  }
  if (!message.calls().empty()) {
    if (message.content().empty()) {
      out["content"] = nullptr;
    }
    out["tool_calls"] = json::array();
    for (const ToolCall& call : message.calls()) {
      out["tool_calls"].push_back(
          {{"id", call.id},
           {"type", "function"},
           {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
    }
  }
  return out;
}

json delta_json(const ChatDelta& delta, bool alias) {
  switch (delta.kind) {
    case Kind::content:
      return {{"content", delta.text}};
    case Kind::reasoning:
      return alias
                 ? json{{"reasoning_content", delta.text}, {"reasoning", delta.text}}
                 : json{{"reasoning_content", delta.text}};
    case Kind::call: {
      json call = {
          {"index", delta.index},
          {"id", delta.id},
          {"type", "function"},
          {"function", {{"name", delta.text}, {"arguments", ""}}}};
      return {{"tool_calls", json::array({std::move(call)})}};
    }
    case Kind::arguments: {
      json call = {
          {"index", delta.index}, {"function", {{"arguments", delta.text}}}};
      return {{"tool_calls", json::array({std::move(call)})}};
    }
  }
  return json::object();
}

const char* chat_finish_reason(const ChatMessage& message, StopKind stop) {
  return stop == StopKind::eos && !message.calls().empty()
             ? "tool_calls"
             : finish_reason(stop);
}

}  // namespace mlxcel::server
