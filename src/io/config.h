// A checkpoint's config.json after sanitizing: typed access with errors that
// name the file, the key and the value.
#pragma once

#include "core/error.h"

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mlxcel {

// Who wrote a checkpoint's tensors: the model's publisher, or an MLX
// conversion, which for a few families changes shapes or values.
enum class WeightsLayout : uint8_t { published, mlx };

class Config {
 public:
  Config() = default;
  Config(nlohmann::json json, std::string file);

  // T: bool, int, int64_t, float, double, std::string, std::vector of those.
  // Throws ConfigError when the key is missing, null or of another type. An
  // integer may be written as 8.0 and must fit T; a number may be an integer.
  template <typename T>
  T get(std::string_view key) const;
  // Missing or null gives the fallback; another type still throws.
  template <typename T>
  T get_or(std::string_view key, T fallback) const;
  template <typename T>
  std::optional<T> find(std::string_view key) const;

  bool has(std::string_view key) const;    // present and not null
  Config sub(std::string_view key) const;  // a nested object; throws if absent
  std::optional<Config> find_sub(std::string_view key) const;

  const nlohmann::json& json() const {
    return json_;
  }
  const std::string& file() const {
    return file_;
  }
  // Of the weights that the config belongs to; `published` unless set.
  WeightsLayout layout() const {
    return layout_;
  }
  void set_layout(WeightsLayout layout) {
    layout_ = layout;
  }

 private:
  const nlohmann::json* lookup(std::string_view key) const;
  std::string path_of(std::string_view key) const;
  [[noreturn]] void refuse_missing(std::string_view key) const;

  nlohmann::json json_ = nlohmann::json::object();
  std::string file_;
  WeightsLayout layout_ = WeightsLayout::published;
  std::string prefix_;  // where a nested object lies: "text_config"
};

}  // namespace mlxcel
