#include "text/chat_output.h"

#include "text/reasoning.h"
#include "text/tool_calls.h"

#include <optional>

namespace mlxcel {

struct ChatOutput::State {
  ChatOutputOptions options;
  std::optional<ReasoningSplitter> splitter;
  std::unique_ptr<ToolCallReader> calls;  // null: none are looked for

  void answer(std::string text, std::vector<ChatDelta>* out) {
    if (calls) {
      calls->push(text, out);
    } else if (!text.empty()) {
      out->push_back({ChatDelta::Kind::content, std::move(text), -1, {}});
    }
  }
  void drop_later_calls(std::vector<ChatDelta>* out) const {
    if (!options.parallel) {
      std::erase_if(
          *out, [](const ChatDelta& delta) { return delta.index > 0; });
    }
  }
  static void thought(std::string text, std::vector<ChatDelta>* out) {
    if (!text.empty()) {
      out->push_back({ChatDelta::Kind::reasoning, std::move(text), -1, {}});
    }
  }
};

ChatOutput::ChatOutput(ChatOutputOptions options)
    : state_(std::make_unique<State>()) {
  state_->options = std::move(options);
  const ChatOutputOptions& o = state_->options;
  if (o.format != nullptr && o.format->body == CallBody::harmony) {
    state_->calls = make_harmony_reader(o.reasoning);
    return;
  }
  state_->splitter.emplace(o.marks, o.reasoning, o.prompt);
  if (o.format != nullptr) {
    state_->calls = make_tool_call_reader(*o.format, o.tools);
  }
}

ChatOutput::~ChatOutput() = default;
ChatOutput::ChatOutput(ChatOutput&&) noexcept = default;

std::vector<ChatDelta> ChatOutput::push(std::string_view text) {
  std::vector<ChatDelta> out;
  if (state_->splitter) {
    std::string answer;
    State::thought(state_->splitter->push(text, &answer), &out);
    state_->answer(std::move(answer), &out);
  } else {
    state_->calls->push(text, &out);
  }
  state_->drop_later_calls(&out);
  return out;
}

std::vector<ChatDelta> ChatOutput::finish() {
  std::vector<ChatDelta> out;
  if (state_->splitter) {
    std::string answer;
    State::thought(state_->splitter->finish(&answer), &out);
    state_->answer(std::move(answer), &out);
  }
  if (state_->calls) {
    state_->calls->finish(&out);
  }
  state_->drop_later_calls(&out);
  return out;
}

int ChatOutput::num_calls() const {
  return state_->calls ? state_->calls->num_calls() : 0;
}

}  // namespace mlxcel
