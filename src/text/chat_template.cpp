#include "text/chat_template.h"

#include "core/error.h"
#include "io/json.h"
#include "text/template_source.h"
#include "text/textkit_call.h"
#include "text/tokenizer_config.h"

#include <map>
#include <nlohmann/json.hpp>

namespace mlxcel {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

struct TemplateDeleter {
  void operator()(tk_template* handle) const {
    tk_template_free(handle);
  }
};
using Handle = std::unique_ptr<tk_template, TemplateDeleter>;

Handle compile(const std::string& text, const std::string& where) {
  tk_template* handle = nullptr;
  std::string source = adapt_template(text);
  textkit_call(
      cat("cannot use the chat template of ", where),
      "give another one with --chat-template-file",
      [&](tk_sink sink, void* user) {
        return tk_template_new(
            source.data(), source.size(), &handle, sink, user);
      });
  return Handle(handle);
}

// A template is a string, or a list of {"name", "template"}.
void collect(const Json& value, std::map<std::string, std::string>* out) {
  if (value.is_string()) {
    out->emplace("default", value.get<std::string>());
  } else if (value.is_array()) {
    for (const Json& entry : value) {
      if (entry.is_object() && entry.contains("name") &&
          entry.contains("template") && entry["name"].is_string() &&
          entry["template"].is_string()) {
        out->emplace(
            entry["name"].get<std::string>(),
            entry["template"].get<std::string>());
      }
    }
  }
}

// Files win over tokenizer_config.json, and .jinja over .json.
std::map<std::string, std::string> find_sources(
    const fs::path& folder, const TokenizerConfig& config) {
  std::map<std::string, std::string> sources;
  if (fs::path file = folder / "chat_template.jinja"; fs::exists(file)) {
    sources.emplace("default", read_text_file(file));
  }
  fs::path more = folder / "additional_chat_templates";
  if (fs::is_directory(more)) {
    for (const fs::directory_entry& entry : fs::directory_iterator(more)) {
      if (entry.path().extension() == ".jinja") {
        sources.emplace(
            entry.path().stem().string(), read_text_file(entry.path()));
      }
    }
  }
  Json json = read_json_object(folder / "chat_template.json");
  if (json.contains("chat_template")) {
    collect(json["chat_template"], &sources);
  }
  if (config.json.contains("chat_template")) {
    collect(config.json["chat_template"], &sources);
  }
  return sources;
}

}  // namespace

struct ChatTemplate::State {
  std::string where;  // folder, for messages
  std::map<std::string, Handle> handles;
  std::map<std::string, std::string> sources;
  std::map<std::string, std::string> named_tokens;
};

ChatTemplate::ChatTemplate() : state_(std::make_unique<State>()) {}
ChatTemplate::~ChatTemplate() = default;

std::unique_ptr<ChatTemplate> ChatTemplate::load(const fs::path& folder) {
  TokenizerConfig config = TokenizerConfig::load(folder);
  std::map<std::string, std::string> sources = find_sources(folder, config);
  if (sources.empty()) {
    return nullptr;
  }
  std::unique_ptr<ChatTemplate> out(new ChatTemplate());
  out->state_->where = folder.string();
  out->state_->named_tokens = std::move(config.named_tokens);
  for (const auto& [name, source] : sources) {
    out->state_->handles.emplace(name, compile(source, folder.string()));
  }
  out->state_->sources = std::move(sources);
  return out;
}

std::unique_ptr<ChatTemplate> ChatTemplate::from_source(
    const std::string& source, const fs::path& folder) {
  std::unique_ptr<ChatTemplate> out(new ChatTemplate());
  out->state_->where = "the command line";
  if (!folder.empty()) {
    out->state_->named_tokens = TokenizerConfig::load(folder).named_tokens;
  }
  out->state_->handles.emplace("default", compile(source, out->state_->where));
  out->state_->sources.emplace("default", source);
  return out;
}

const std::string& ChatTemplate::source(bool with_tools) const {
  static const std::string none;
  const auto& sources = state_->sources;
  auto found = with_tools ? sources.find("tool_use") : sources.end();
  if (found == sources.end()) {
    found = sources.find("default");
  }
  return found == sources.end() ? none : found->second;
}

std::string ChatTemplate::render(const Input& input) const {
  const auto& handles = state_->handles;
  bool with_tools = input.tools != nullptr && !input.tools->is_null();
  auto chosen = handles.end();
  if (!input.name.empty()) {
    chosen = handles.find(input.name);
  } else {
    if (with_tools) {
      chosen = handles.find("tool_use");
    }
    if (chosen == handles.end()) {
      chosen = handles.find("default");
    }
  }
  if (chosen == handles.end()) {
    std::vector<std::string> names;
    for (const auto& [name, handle] : handles) {
      names.push_back(name);
    }
    std::string wanted = input.name.empty() ? "default" : input.name;
    throw TextError(
        cat("no chat template named \"", wanted, "\" in ", state_->where),
        cat("there are: ", fmt::format("{}", fmt::join(names, ", "))),
        "give the text of one of them as the chat template");
  }

  Json context = {
      {"messages", input.messages != nullptr ? *input.messages : Json::array()},
      {"tools", with_tools ? *input.tools : Json(nullptr)},
      {"documents", nullptr},
      {"add_generation_prompt", input.add_generation_prompt}};
  for (const auto& [name, token] : state_->named_tokens) {
    context[name] = token;
  }
  if (input.kwargs != nullptr) {
    for (const auto& [name, value] : input.kwargs->items()) {
      context[name] = value;
    }
  }
  // Messages may carry any bytes; the template sees U+FFFD for ill-formed ones.
  std::string json =
      context.dump(-1, ' ', false, Json::error_handler_t::replace);
  int code = TK_OK;
  std::string text = textkit_result(
      [&](tk_sink sink, void* user) {
        return tk_template_render(
            chosen->second.get(), json.data(), json.size(), sink, user);
      },
      &code);
  if (code == TK_RAISED) {
    throw TextError(
        "the chat template refuses these messages",
        text,
        "change the messages, or give another template with "
        "--chat-template-file");
  }
  if (code != TK_OK) {
    throw TextError(
        cat("the chat template of ", state_->where, " failed"),
        text,
        "give another one with --chat-template-file");
  }
  return text;
}

std::optional<std::string> reserved_variable(
    const nlohmann::ordered_json& variables) {
  for (const char* name :
       {"messages",
        "tools",
        "add_generation_prompt",
        "bos_token",
        "eos_token",
        "unk_token",
        "sep_token",
        "pad_token",
        "cls_token",
        "mask_token",
        "raise_exception",
        "strftime_now"}) {
    if (variables.contains(name)) {
      return name;
    }
  }
  return std::nullopt;
}

Json parse_template_kwargs(const std::string& text) {
  constexpr const char* kWrong = "wrong --chat-template-kwargs";
  if (text.empty()) {
    return Json::object();
  }
  // Writing the value out for the template descends with it.
  auto depth = [&](int level, auto, const auto&) {
    if (level > kMaxJsonDepth) {
      throw UsageError(
          kWrong,
          cat("it is nested deeper than ", kMaxJsonDepth, " levels"),
          "templates need flat variables");
    }
    return true;
  };
  Json kwargs = Json::parse(text, depth, false);
  if (!kwargs.is_object()) {
    throw UsageError(
        kWrong,
        cat("'", text, "' is no JSON object"),
        "write for example --chat-template-kwargs "
        "'{\"enable_thinking\": false}'");
  }
  if (std::optional<std::string> name = reserved_variable(kwargs)) {
    throw UsageError(
        kWrong,
        cat("it sets '", *name, "', which every template gets from elsewhere"),
        "leave that name out");
  }
  return kwargs;
}

}  // namespace mlxcel
