#include "server/chat_prompt.h"

#include "core/error.h"
#include "core/log.h"
#include "text/special_ids.h"

namespace mlxcel::server {

using http::Failure;
using nlohmann::ordered_json;

namespace {

[[noreturn]] void refuse_part(
    size_t index, const std::string& type, const ServedModel& model) {
  bool image = type.find("image") != std::string::npos ||
               type.find("video") != std::string::npos;
  throw Failure::bad_request(
      image ? cat("model ",
                  model.folder.string(),
                  " was loaded without a vision tower (text-only checkpoint)")
            : cat("messages[",
                  index,
                  "] has a content part of type '",
                  type,
                  "'; only text is understood"),
      "messages");
}

// One text from the parts of a message.
std::string joined_parts(
    const ordered_json& parts, size_t index, const ServedModel& model) {
  std::string text;
  for (const ordered_json& part : parts) {
    if (!part.is_object() || !part.contains("type") ||
        !part["type"].is_string()) {
      throw Failure::bad_request(
          cat("messages[",
              index,
              "].content must hold objects with a \"type\""),
          "messages");
    }
    std::string type = part["type"].get<std::string>();
    if (type != "text" && type != "input_text" && type != "output_text") {
      refuse_part(index, type, model);
    }
    if (!part.contains("text") || !part["text"].is_string()) {
      throw Failure::bad_request(
          cat("messages[", index, "] has a text part without a \"text\""),
          "messages");
    }
    text += cat(text.empty() ? "" : "\n", part["text"].get<std::string>());
  }
  return text;
}

}  // namespace

ChatInput read_chat_input(
    Body& body, const ordered_json& raw, const ServedModel& model) {
  const nlohmann::json* messages = body.find("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    Body::refuse("messages", "must be an array with at least one message");
  }
  ChatInput input;
  input.messages = raw.at("messages");
  for (size_t i = 0; i < input.messages.size(); ++i) {
    ordered_json& message = input.messages[i];
    if (!message.is_object() || !message.contains("role") ||
        !message["role"].is_string()) {
      throw Failure::bad_request(
          cat("messages[", i, "] must be an object with a \"role\""),
          "messages");
    }
    if (!message.contains("content")) {
      message["content"] = nullptr;
    }
    ordered_json& content = message["content"];
    if (content.is_array()) {
      content = joined_parts(content, i, model);
    } else if (content.is_null()) {
      // Calls stand in place of a text, which templates may still join.
      bool calls = message.contains("tool_calls");
      if (!calls && message["role"] != "assistant") {
        throw Failure::bad_request(
            cat("messages[", i, "] has no content"), "messages");
      }
      content = calls ? ordered_json() : ordered_json("");
    } else if (!content.is_string()) {
      throw Failure::bad_request(
          cat("messages[",
              i,
              "].content must be a string or an array of parts"),
          "messages");
    }
  }
  input.kwargs = model.template_kwargs;
  const nlohmann::json* kwargs = body.find("chat_template_kwargs");
  if (kwargs != nullptr) {
    if (!kwargs->is_object()) {
      Body::refuse(
          "chat_template_kwargs",
          cat("must be an object, not ", kind_of(*kwargs)));
    }
    const ordered_json& given = raw.at("chat_template_kwargs");
    if (std::optional<std::string> name = reserved_variable(given)) {
      Body::refuse(
          "chat_template_kwargs",
          cat("sets '", *name, "', which the server gives the template"));
    }
    for (const auto& [name, value] : given.items()) {
      input.kwargs[name] = value;
    }
  }
  input.add_generation_prompt = body.flag("add_generation_prompt", true);
  return input;
}

namespace {

// Whether the last message is the beginning of the answer that is asked for.
bool begins_answer(const ChatInput& input, const ServedModel& model) {
  if (!model.answers.prefill_assistant || !input.add_generation_prompt ||
      input.messages.size() < 2) {
    return false;
  }
  const ordered_json& last = input.messages.back();
  return last["role"] == "assistant" && !last.contains("tool_calls") &&
         last["content"].is_string() && !last["content"].empty();
}

}  // namespace

std::string render_chat(const ChatInput& input, const ServedModel& model) {
  if (!model.chat_template) {
    throw Failure::bad_request(
        "this model has no chat template; start the server with "
        "--chat-template-file, or use /v1/completions");
  }
  ChatTemplate::Input rendered;
  rendered.messages = &input.messages;
  rendered.tools = input.tools.is_null() ? nullptr : &input.tools;
  rendered.kwargs = &input.kwargs;
  rendered.add_generation_prompt = input.add_generation_prompt;
  if (!begins_answer(input, model)) {
    return model.chat_template->render(rendered);
  }
  ordered_json before = input.messages;
  before.erase(before.size() - 1);
  rendered.messages = &before;
  return model.chat_template->render(rendered) +
         input.messages.back()["content"].get<std::string>();
}

ChatPrompt chat_prompt(const ChatInput& input, const ServedModel& model) {
  ChatPrompt prompt;
  prompt.text = render_chat(input, model);
  check_length(prompt.text, input.use, model);
  std::string warning;
  prompt.tokens =
      encode_prompt(*model.tokenizer, prompt.text, PromptKind::chat, &warning);
  if (!warning.empty()) {
    log_warning(warning);
  }
  return prompt;
}

}  // namespace mlxcel::server
