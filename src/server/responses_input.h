// The input of OpenAI's Responses API as a conversation.
#pragma once

#include "server/chat_plan.h"

#include <nlohmann/json.hpp>

namespace mlxcel::server {

// `input` (a text or items: messages, function calls and their outputs) and
// `instructions`. Throws Failure for items that nothing stands behind here.
nlohmann::ordered_json responses_messages(const nlohmann::ordered_json& body);

// `tools`, `tool_choice`, `parallel_tool_calls` and `text` of its body.
AnswerWishes responses_wishes(
    const nlohmann::ordered_json& body, const ServedModel& model);

}  // namespace mlxcel::server
