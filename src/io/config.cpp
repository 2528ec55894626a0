#include "io/config.h"

#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

namespace mlxcel {

namespace {

using Json = nlohmann::json;

template <typename T>
struct IsVector : std::false_type {};
template <typename T>
struct IsVector<std::vector<T>> : std::true_type {};

template <typename T>
std::string type_words() {
  if constexpr (std::is_same_v<T, bool>) {
    return "true or false";
  } else if constexpr (std::is_integral_v<T>) {
    return "an integer";
  } else if constexpr (std::is_floating_point_v<T>) {
    return "a number";
  } else if constexpr (std::is_same_v<T, std::string>) {
    return "a string";
  } else {
    return "a list, each entry " + type_words<typename T::value_type>();
  }
}

// Integers may be written as 8.0; a fraction is never cut off.
template <typename T>
std::optional<T> to_integer(const Json& value) {
  if (value.is_number_unsigned()) {
    uint64_t number = value.get<uint64_t>();
    if (number <= uint64_t(std::numeric_limits<T>::max())) {
      return T(number);
    }
  } else if (value.is_number_integer()) {
    int64_t number = value.get<int64_t>();
    if (number >= std::numeric_limits<T>::min() &&
        number <= std::numeric_limits<T>::max()) {
      return T(number);
    }
  } else if (value.is_number_float()) {
    double number = value.get<double>();
    // 2^53: beyond it a double no longer holds every integer.
    constexpr double exact = 9007199254740992.0;
    if (number == std::trunc(number) && std::abs(number) <= exact &&
        number >= double(std::numeric_limits<T>::min()) &&
        number <= double(std::numeric_limits<T>::max())) {
      return T(number);
    }
  }
  return std::nullopt;
}

template <typename T>
std::optional<T> convert(const Json& value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value.is_boolean() ? std::optional(value.get<bool>()) : std::nullopt;
  } else if constexpr (std::is_integral_v<T>) {
    return to_integer<T>(value);
  } else if constexpr (std::is_floating_point_v<T>) {
    return value.is_number() ? std::optional(T(value.get<double>()))
                             : std::nullopt;
  } else if constexpr (std::is_same_v<T, std::string>) {
    return value.is_string() ? std::optional(value.get<std::string>())
                             : std::nullopt;
  } else {
    static_assert(IsVector<T>::value);
    if (!value.is_array()) {
      return std::nullopt;
    }
    T out;
    for (const Json& entry : value) {
      auto converted = convert<typename T::value_type>(entry);
      if (!converted) {
        return std::nullopt;
      }
      out.push_back(*std::move(converted));
    }
    return out;
  }
}

std::string shortened(const Json& value) {
  // Ill-formed UTF-8 is replaced: a message must never throw itself.
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() > 80 ? text.substr(0, 77) + "..." : text;
}

}  // namespace

Config::Config(Json json, std::string file)
    : json_(std::move(json)), file_(std::move(file)) {
  if (!json_.is_object()) {
    throw ConfigError(
        cat("cannot read ", file_),
        cat("expected a JSON object, found ", json_.type_name()));
  }
}

const Json* Config::lookup(std::string_view key) const {
  auto found = json_.find(key);
  return found == json_.end() || found->is_null() ? nullptr : &*found;
}

std::string Config::path_of(std::string_view key) const {
  return prefix_.empty() ? std::string(key) : cat(prefix_, ".", key);
}

void Config::refuse_missing(std::string_view key) const {
  throw ConfigError(
      cat(file_, ": \"", path_of(key), "\" is missing"),
      json_.contains(key) ? "its value is null"
                          : "the model cannot be built without it",
      "take config.json from the model's original publisher");
}

template <typename T>
std::optional<T> Config::find(std::string_view key) const {
  const Json* value = lookup(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  std::optional<T> converted = convert<T>(*value);
  if (!converted) {
    throw ConfigError(
        cat(file_, ": \"", path_of(key), "\" has the wrong type"),
        cat("expected ", type_words<T>(), ", found ", shortened(*value)),
        "correct the value in the file");
  }
  return converted;
}

template <typename T>
T Config::get(std::string_view key) const {
  std::optional<T> value = find<T>(key);
  if (!value) {
    refuse_missing(key);
  }
  return *std::move(value);
}

template <typename T>
T Config::get_or(std::string_view key, T fallback) const {
  std::optional<T> value = find<T>(key);
  return value ? *std::move(value) : std::move(fallback);
}

bool Config::has(std::string_view key) const {
  return lookup(key) != nullptr;
}

std::optional<Config> Config::find_sub(std::string_view key) const {
  const Json* value = lookup(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_object()) {
    throw ConfigError(
        cat(file_, ": \"", path_of(key), "\" has the wrong type"),
        cat("expected an object, found ", shortened(*value)),
        "correct the value in the file");
  }
  Config out(*value, file_);
  out.prefix_ = path_of(key);
  out.layout_ = layout_;
  return out;
}

Config Config::sub(std::string_view key) const {
  std::optional<Config> value = find_sub(key);
  if (!value) {
    refuse_missing(key);
  }
  return *std::move(value);
}

#define MLXCEL_CONFIG_TYPE(...)                                          \
  template __VA_ARGS__ Config::get<__VA_ARGS__>(std::string_view) const; \
  template __VA_ARGS__ Config::get_or<__VA_ARGS__>(                      \
      std::string_view, __VA_ARGS__) const;                              \
  template std::optional<__VA_ARGS__> Config::find<__VA_ARGS__>(         \
      std::string_view) const;

MLXCEL_CONFIG_TYPE(bool)
MLXCEL_CONFIG_TYPE(int)
MLXCEL_CONFIG_TYPE(int64_t)
MLXCEL_CONFIG_TYPE(float)
MLXCEL_CONFIG_TYPE(double)
MLXCEL_CONFIG_TYPE(std::string)
MLXCEL_CONFIG_TYPE(std::vector<bool>)
MLXCEL_CONFIG_TYPE(std::vector<int>)
MLXCEL_CONFIG_TYPE(std::vector<int64_t>)
MLXCEL_CONFIG_TYPE(std::vector<float>)
MLXCEL_CONFIG_TYPE(std::vector<double>)
MLXCEL_CONFIG_TYPE(std::vector<std::string>)
#undef MLXCEL_CONFIG_TYPE

}  // namespace mlxcel
