// From a conversation to the prompt's tokens, through the chat template.
#pragma once

#include "server/body.h"
#include "server/prompt_length.h"
#include "server/served_model.h"

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace mlxcel::server {

struct ChatInput {
  nlohmann::ordered_json messages;  // contents are texts or null
  nlohmann::ordered_json tools;     // null: none
  nlohmann::ordered_json kwargs;    // the template's variables
  bool add_generation_prompt = true;
  TextUse use = TextUse::prompt;
};

struct ChatPrompt {
  std::string text;  // as rendered
  std::vector<int32_t> tokens;
};

// `messages`, `chat_template_kwargs` and `add_generation_prompt` of a body;
// `raw` is the same body with the order of its keys. Lists of text parts become
// one text. Throws Failure for other shapes, and for images and the like.
ChatInput read_chat_input(
    Body& body, const nlohmann::ordered_json& raw, const ServedModel& model);

// Throws Failure when the model has no template, TextError when the template
// refuses the conversation.
std::string render_chat(const ChatInput& input, const ServedModel& model);
ChatPrompt chat_prompt(const ChatInput& input, const ServedModel& model);

}  // namespace mlxcel::server
