// Reads tool calls out of an answer's text as it arrives.
#pragma once

#include "text/chat_output.h"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace mlxcel {

// Readers of one notation; deltas are appended to *out.
class ToolCallReader {
 public:
  virtual ~ToolCallReader() = default;
  virtual void push(std::string_view text, std::vector<ChatDelta>* out) = 0;
  virtual void finish(std::vector<ChatDelta>* out) = 0;
  int num_calls() const {
    return num_calls_;
  }

 protected:
  int num_calls_ = 0;
};

// `tools` as in a request to OpenAI's chat route.
std::unique_ptr<ToolCallReader> make_tool_call_reader(
    const ToolFormat& format, const nlohmann::ordered_json& tools);
// gpt-oss: channels for thoughts, calls and the answer.
std::unique_ptr<ToolCallReader> make_harmony_reader(ReasoningFormat reasoning);

// The schema of a function's argument; null when the tools do not say.
const nlohmann::ordered_json* argument_schema(
    const nlohmann::ordered_json& tools,
    std::string_view function,
    std::string_view argument);
// The parameters of a function, `{"type": "object"}` when it has none.
nlohmann::ordered_json function_parameters(const nlohmann::ordered_json& tool);
// Its name; "" for entries of another kind.
std::string function_name(const nlohmann::ordered_json& tool);

// A value written as text: a string where the schema wants one, else JSON when
// it is that.
std::string value_json(
    std::string_view text, const nlohmann::ordered_json* schema);

}  // namespace mlxcel
