// The body of Anthropic's Messages API as a conversation.
#pragma once

#include "server/chat_plan.h"

#include <nlohmann/json.hpp>

namespace mlxcel::server {

// `system` and `messages`: texts, tool_use, tool_result and thinking blocks.
nlohmann::ordered_json messages_conversation(
    const nlohmann::ordered_json& body, const ServedModel& model);

// `tools`, `tool_choice` and `output_config` of its body.
AnswerWishes messages_wishes(
    const nlohmann::ordered_json& body, const ServedModel& model);

}  // namespace mlxcel::server
