// Chat templates (Jinja) of a checkpoint folder.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mlxcel {

class ChatTemplate {
 public:
  // From chat_template.jinja, chat_template.json or tokenizer_config.json
  // (a string, or a list of named templates). Null when the folder has none.
  static std::unique_ptr<ChatTemplate> load(
      const std::filesystem::path& folder);
  // A template given by the user; named tokens (bos_token, ...) come from the
  // folder's tokenizer_config.json when a folder is given.
  static std::unique_ptr<ChatTemplate> from_source(
      const std::string& source, const std::filesystem::path& folder = {});
  ~ChatTemplate();

  struct Input {
    const nlohmann::ordered_json* messages =
        nullptr;  // array of {role, content, ...}
    const nlohmann::ordered_json* tools = nullptr;  // array, or null
    const nlohmann::ordered_json* kwargs =
        nullptr;  // object: enable_thinking, ...
    bool add_generation_prompt = true;
    std::string name;  // named template; "" picks default (tool_use with tools)
  };
  // Throws TextError with the template's own message on raise_exception.
  std::string render(const Input& input) const;
  // The Jinja text of the template that renders conversations with tools, or
  // without.
  const std::string& source(bool with_tools) const;

 private:
  ChatTemplate();
  struct State;
  std::unique_ptr<State> state_;
};

// Of these variables, the first whose name every template gets from elsewhere:
// the conversation, the tools, the tokenizer's named tokens, the template
// functions. Nothing when all are free.
std::optional<std::string> reserved_variable(
    const nlohmann::ordered_json& variables);

// The variables that --chat-template-kwargs states: the text of a JSON object,
// or nothing. Throws UsageError, also for a name that reserved_variable()
// finds.
nlohmann::ordered_json parse_template_kwargs(const std::string& text);

}  // namespace mlxcel
