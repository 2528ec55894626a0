// What a request asks of a chat's answer beyond words (tools, a schema, a
// grammar, thoughts apart), and what that means for prompt, grammar and reader.
#pragma once

#include "server/chat_prompt.h"
#include "server/generation.h"
#include "text/chat_output.h"

#include <nlohmann/json.hpp>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace mlxcel::server {

enum class ToolUse : uint8_t { none, automatic, required };

struct AnswerWishes {
  nlohmann::ordered_json tools;  // OpenAI's form; null: none
  ToolUse use = ToolUse::automatic;
  std::string only_tool;  // the one to be called; "": any
  bool parallel = true;
  nlohmann::ordered_json schema;         // of the answer; null: none
  std::optional<GrammarSource> grammar;  // of the answer as a whole
  ReasoningFormat reasoning = ReasoningFormat::deepseek;
  int64_t reasoning_budget = -1;  // tokens of a thought at most; -1: any
};

// What holds for requests that say nothing else.
AnswerWishes default_wishes(const ServedModel& model);

// `tools`, `tool_choice`, `parallel_tool_calls`, `response_format`,
// `json_schema`, `grammar`, `reasoning_format` and `reasoning_budget` of an
// OpenAI body. Throws Failure that names the field.
AnswerWishes read_answer_wishes(
    Body& body, const nlohmann::ordered_json& raw, const ServedModel& model);

// `grammar`, `json_schema` and `response_format` of a completion's body, of
// which one may rule the answer; null: none does. Throws Failure that names the
// field.
std::shared_ptr<const Grammar> read_grammar(
    Body& body, const nlohmann::ordered_json& raw, const ServedModel& model);

// The schema of OpenAI's "text", "json_object" or "json_schema" format, whose
// members may lie in an object of that name. Null for "text".
nlohmann::ordered_json read_format(
    const nlohmann::ordered_json& format, const std::string& name);

// Throws Failure for what is no function tool.
void check_tools(const nlohmann::ordered_json& tools);

struct ChatPlan {
  ChatPrompt prompt;
  ChatOutputOptions output;
  std::shared_ptr<const Grammar> grammar;  // null: the answer is free
  std::vector<int32_t> kept_special;       // tokens that the reader needs
  ThoughtBudget thoughts;
};

// Throws Failure for a schema or grammar that cannot be used.
ChatPlan plan_chat(
    ChatInput input, const AnswerWishes& wishes, const ServedModel& model);

// The prompt of a conversation with these functions (null: none), as plan_chat
// has it. Throws as plan_chat does.
std::string conversation_text(
    ChatInput input,
    const nlohmann::ordered_json& tools,
    const ServedModel& model);

// Hands the plan's prompt, grammar and tokens to the generation.
void apply_plan(const ChatPlan& plan, GenerationRequest& generation);

}  // namespace mlxcel::server
