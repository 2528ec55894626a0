// What a family makes of a config, or why it refuses it.
#pragma once

#include "core/error.h"
#include "models/family.h"
#include "models/registry.h"

#include <string>
#include <string_view>

namespace mlxcel::testing {

inline DecoderSpec spec_of(
    std::string_view model_type, const nlohmann::json& config) {
  return decoder_spec(
      *find_by_model_type(model_type), Config(config, "config.json"));
}

// The message of the ConfigError, or "accepted".
inline std::string refusal(
    std::string_view model_type, const nlohmann::json& config) {
  try {
    spec_of(model_type, config);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace mlxcel::testing
