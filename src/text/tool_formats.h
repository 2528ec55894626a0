// How models write tool calls, as data: one row a notation, chosen by what the
// chat template contains.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace mlxcel {

class Tokenizer;

enum class CallBody : uint8_t {
  object,      // {"name": ..., "arguments": {...}}
  array,       // [{"name": ..., "arguments": {...}}, ...]
  named_json,  // NAME, then the arguments as JSON
  parameters,  // NAME, then KEY and VALUE of each argument between marks
  braces,      // NAME{key:value,...}, strings between marks of their own
  harmony,     // a channel of its own, addressed to the function
};

struct Marks {
  const char* open = "";
  const char* close = "";
};

struct ToolFormat {
  const char* name;
  std::array<const char*, 2> signs;  // the template contains all of them
  CallBody body;
  Marks section;    // around all calls; "" for none
  Marks call;       // around each; "" opens with the JSON itself
  Marks parameter;  // around each, or around a string of `braces`
  // What follows the name, a parameter's key, and what its value begins with.
  std::array<const char*, 3> after = {"", "", ""};
  std::array<const char*, 2> keys = {"name", "arguments"};
};

// Never null: the last row is JSON alone, for templates without a notation.
const ToolFormat* find_tool_format(std::string_view template_source);
const ToolFormat* tool_format(std::string_view name);  // null: unknown

// Does the template put tools into the prompt? Where it does not, the
// conversation has to name them.
bool template_knows_tools(std::string_view template_source);

// Marks of a part in which a model thinks before it answers.
Marks find_reasoning_marks(std::string_view template_source);

// The special tokens that the marks consist of: a reader of the text needs
// them, while other special tokens are left out.
std::vector<int32_t> tokens_of_marks(
    const ToolFormat& format,
    const Marks& reasoning,
    const Tokenizer& tokenizer);

}  // namespace mlxcel
