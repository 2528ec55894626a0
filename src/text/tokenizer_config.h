// tokenizer_config.json and the small files beside it: which tokens are named
// (bos_token and the like), which are added, and the chat templates.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace mlxcel {

// A JSON object from a file, comments allowed; an absent file is an empty
// object. Throws ConfigError or TextError that names the file.
nlohmann::ordered_json read_json_object(const std::filesystem::path& file);

struct TokenizerConfig {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  // "bos_token" -> "<s>", from tokenizer_config.json, then
  // special_tokens_map.json.
  std::map<std::string, std::string> named_tokens;

  static TokenizerConfig load(const std::filesystem::path& folder);
  std::optional<std::string> named(const std::string& name) const;
  bool flag(const std::string& name, bool fallback) const;
};

}  // namespace mlxcel
