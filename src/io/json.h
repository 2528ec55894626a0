// JSON files that others wrote, read strictly: duplicate keys, deep nesting and
// text after the value are refused with the place in the file.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace mlxcel {

// Nesting that no checkpoint file needs; bounds what hostile input can cost.
constexpr int kMaxJsonDepth = 64;

// `file` only names the text in messages. Throws ConfigError.
nlohmann::json parse_json(std::string_view text, const std::string& file);

// The whole file, at most `limit` bytes. Throws ConfigError.
std::string read_text_file(
    const std::filesystem::path& path, size_t limit = size_t(256) << 20);

nlohmann::json read_json_file(const std::filesystem::path& path);

}  // namespace mlxcel
