#include "text/tokenizer_config.h"

#include "core/error.h"
#include "io/json.h"

namespace mlxcel {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

// A token is written as a string or as an object with its content.
std::optional<std::string> token_content(const Json& value) {
  if (value.is_string()) {
    return value.get<std::string>();
  }
  if (value.is_object()) {
    auto content = value.find("content");
    if (content != value.end() && content->is_string()) {
      return content->get<std::string>();
    }
  }
  return std::nullopt;
}

void collect_named(const Json& json, std::map<std::string, std::string>* out) {
  for (const auto& [key, value] : json.items()) {
    if (key.ends_with("_token")) {
      if (std::optional<std::string> content = token_content(value)) {
        out->emplace(key, *content);
      }
    }
  }
}

}  // namespace

Json read_json_object(const fs::path& file) {
  if (!fs::exists(file)) {
    return Json::object();
  }
  try {
    // Writing a value out again descends with it: hostile nesting ends here.
    auto depth = [&](int level, Json::parse_event_t, const Json&) {
      if (level > kMaxJsonDepth) {
        throw TextError(
            cat("cannot read ", file.string()),
            cat("nested deeper than ", kMaxJsonDepth, " levels"),
            "no checkpoint file needs that; download the file again");
      }
      return true;
    };
    Json json = Json::parse(read_text_file(file), depth, true, true);
    if (!json.is_object()) {
      throw TextError(
          cat("cannot use ", file.string()),
          cat("it holds a JSON ", json.type_name(), ", not an object"),
          "download the file again");
    }
    return json;
  } catch (const Json::exception& error) {
    throw TextError(
        cat("cannot read ", file.string()),
        error.what(),
        "the file is not valid JSON; download it again");
  }
}

TokenizerConfig TokenizerConfig::load(const fs::path& folder) {
  TokenizerConfig config;
  config.json = read_json_object(folder / "tokenizer_config.json");
  collect_named(config.json, &config.named_tokens);
  collect_named(
      read_json_object(folder / "special_tokens_map.json"),
      &config.named_tokens);
  return config;
}

std::optional<std::string> TokenizerConfig::named(
    const std::string& name) const {
  auto found = named_tokens.find(name);
  if (found == named_tokens.end()) {
    return std::nullopt;
  }
  return found->second;
}

bool TokenizerConfig::flag(const std::string& name, bool fallback) const {
  auto found = json.find(name);
  return found != json.end() && found->is_boolean() ? found->get<bool>()
                                                    : fallback;
}

}  // namespace mlxcel
