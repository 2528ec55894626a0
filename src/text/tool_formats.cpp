#include "text/tool_formats.h"

#include "text/tokenizer.h"

#include <algorithm>

namespace mlxcel {

namespace {

// More special rows come first. The notations are those of the published
// templates of the families named.
constexpr ToolFormat kFormats[] = {
    {.name = "harmony",  // gpt-oss
     .signs = {"<|channel|>", "commentary"},
     .body = CallBody::harmony,
     .call = {"<|channel|>commentary to=functions.", "<|call|>"},
     .after = {" <|constrain|>json<|message|>", "", ""}},
    {.name = "gemma4",
     .signs = {"<|tool_call>call:", ""},
     .body = CallBody::braces,
     .call = {"<|tool_call>call:", "<tool_call|>"},
     .parameter = {"<|\"|>", "<|\"|>"}},
    {.name = "functiongemma",
     .signs = {"<start_function_call>", ""},
     .body = CallBody::braces,
     .call = {"<start_function_call>call:", "<end_function_call>"},
     .parameter = {"<escape>", "<escape>"}},
    {.name = "dsml",  // DeepSeek V3.2
     .signs = {"DSML", "invoke"},
     .body = CallBody::parameters,
     .section = {"<｜DSML｜function_calls>", "</｜DSML｜function_calls>"},
     .call = {"<｜DSML｜invoke name=\"", "</｜DSML｜invoke>"},
     .parameter = {"<｜DSML｜parameter name=\"", "</｜DSML｜parameter>"},
     .after = {"\">", "\"", ">"}},
    {.name = "deepseek",  // V3, R1
     .signs = {"<｜tool▁sep｜>", "```json"},
     .body = CallBody::named_json,
     .section = {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"},
     .call =
         {"<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
          "\n```<｜tool▁call▁end｜>"},
     .after = {"\n```json\n", "", ""}},
    {.name = "deepseek_v3_1",
     .signs = {"<｜tool▁sep｜>", ""},
     .body = CallBody::named_json,
     .section = {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"},
     .call = {"<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"},
     .after = {"<｜tool▁sep｜>", "", ""}},
    {.name = "kimi",
     .signs = {"<|tool_calls_section_begin|>", ""},
     .body = CallBody::named_json,
     .section = {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"},
     .call = {"<|tool_call_begin|>functions.", "<|tool_call_end|>"},
     .after = {"<|tool_call_argument_begin|>", "", ""}},
    {.name = "minimax",
     .signs = {"minimax:tool_call", "<invoke name="},
     .body = CallBody::parameters,
     .section = {"<minimax:tool_call>", "</minimax:tool_call>"},
     .call = {"<invoke name=\"", "</invoke>"},
     .parameter = {"<parameter name=\"", "</parameter>"},
     .after = {"\">", "\"", ">"}},
    {.name = "seed",
     .signs = {"seed:tool_call", ""},
     .body = CallBody::parameters,
     .section = {"<seed:tool_call>", "</seed:tool_call>"},
     .call = {"<function=", "</function>"},
     .parameter = {"<parameter=", "</parameter>"},
     .after = {">", ">", ""}},
    {.name = "qwen3_coder",
     .signs = {"<tool_call>", "<parameter="},
     .body = CallBody::parameters,
     .section = {"<tool_call>", "</tool_call>"},
     .call = {"<function=", "</function>"},
     .parameter = {"<parameter=", "</parameter>"},
     .after = {">", ">", ""}},
    {.name = "glm",
     .signs = {"<tool_call>", "<arg_key>"},
     .body = CallBody::parameters,
     .call = {"<tool_call>", "</tool_call>"},
     .parameter = {"<arg_key>", "</arg_value>"},
     .after = {"\n", "</arg_key>", "<arg_value>"}},
    {.name = "mistral_named",  // from Small 3.2 on
     .signs = {"[TOOL_CALLS]", "[ARGS]"},
     .body = CallBody::named_json,
     .call = {"[TOOL_CALLS]", ""},
     .after = {"[ARGS]", "", ""}},
    {.name = "mistral",
     .signs = {"[TOOL_CALLS]", ""},
     .body = CallBody::array,
     .call = {"[TOOL_CALLS]", ""}},
    {.name = "nemotron",
     .signs = {"<TOOLCALL>", ""},
     .body = CallBody::array,
     .call = {"<TOOLCALL>", "</TOOLCALL>"}},
    {.name = "command_r7b",
     .signs = {"<|START_ACTION|>", ""},
     .body = CallBody::array,
     .call = {"<|START_ACTION|>", "<|END_ACTION|>"},
     .keys = {"tool_name", "parameters"}},
    {.name = "command_r",
     .signs = {"Action:", "tool_name"},
     .body = CallBody::array,
     .call = {"Action: ```json\n", "\n```"},
     .keys = {"tool_name", "parameters"}},
    {.name = "granite",  // 3.x
     .signs = {"<|tool_call|>", ""},
     .body = CallBody::array,
     .call = {"<|tool_call|>", ""}},
    {.name = "functools",  // Firefunction 2
     .signs = {"functools[", ""},
     .body = CallBody::array,
     .call = {"functools", ""}},
    {.name = "functools",  // Phi-4-mini
     .signs = {"<|tool|>", "<|/tool|>"},
     .body = CallBody::array,
     .call = {"functools", ""}},
    {.name = "functionary",  // 3.1
     .signs = {"<function=", ""},
     .body = CallBody::named_json,
     .call = {"<function=", "</function>"},
     .after = {">", "", ""}},
    {.name = "hermes",  // Qwen 2.5 and 3, Hermes, Granite 4
     .signs = {"<tool_call>", ""},
     .body = CallBody::object,
     .call = {"<tool_call>\n", "\n</tool_call>"}},
    {.name = "hermes",  // SmolLM 3
     .signs = {"xml_tools", ""},
     .body = CallBody::object,
     .call = {"<tool_call>\n", "\n</tool_call>"}},
    {.name = "llama",  // 3.x; code for the interpreter stays text
     .signs = {"\"parameters\": ", "\"name\": "},
     .body = CallBody::object,
     .section = {"<|python_tag|>", ""},
     .keys = {"name", "parameters"}},
    {.name = "json", .signs = {"", ""}, .body = CallBody::object},
};

struct ReasoningRow {
  const char* sign;
  Marks marks;
};

constexpr ReasoningRow kReasoning[] = {
    {"<seed:think>", {"<seed:think>", "</seed:think>"}},
    {"<|START_THINKING|>", {"<|START_THINKING|>", "<|END_THINKING|>"}},
    {"[THINK]", {"[THINK]", "[/THINK]"}},
    {"<|channel>thought", {"<|channel>thought\n", "<channel|>"}},
};

constexpr Marks kThink = {"<think>", "</think>"};

}  // namespace

const ToolFormat* find_tool_format(std::string_view source) {
  for (const ToolFormat& format : kFormats) {
    if (std::all_of(
            format.signs.begin(), format.signs.end(), [&](const char* sign) {
              return source.find(sign) != std::string_view::npos;
            })) {
      return &format;
    }
  }
  return nullptr;  // the last row has no sign
}

const ToolFormat* tool_format(std::string_view name) {
  for (const ToolFormat& format : kFormats) {
    if (format.name == name) {
      return &format;
    }
  }
  return nullptr;
}

bool template_knows_tools(std::string_view source) {
  return source.find("tools") != std::string_view::npos;
}

Marks find_reasoning_marks(std::string_view source) {
  for (const ReasoningRow& row : kReasoning) {
    if (source.find(row.sign) != std::string_view::npos) {
      return row.marks;
    }
  }
  return kThink;
}

std::vector<int32_t> tokens_of_marks(
    const ToolFormat& format,
    const Marks& reasoning,
    const Tokenizer& tokenizer) {
  std::vector<int32_t> out;
  auto add = [&](std::string_view mark) {
    for (int32_t id : tokenizer.encode(mark, false)) {
      if (tokenizer.is_special(id) &&
          mark.find(tokenizer.token_text(id)) != std::string_view::npos &&
          std::find(out.begin(), out.end(), id) == out.end()) {
        out.push_back(id);
      }
    }
  };
  for (const Marks& marks :
       {format.section, format.call, format.parameter, reasoning}) {
    add(marks.open);
    add(marks.close);
  }
  for (const char* mark : format.after) {
    add(mark);
  }
  if (format.body == CallBody::harmony) {
    add("<|start|><|message|><|end|><|return|>");
  }
  return out;
}

}  // namespace mlxcel
