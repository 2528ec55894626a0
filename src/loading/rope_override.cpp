#include "loading/rope_override.h"

#include "core/error.h"

#include <algorithm>

namespace mlxcel {

using nlohmann::json;

namespace {

// rope_parameters or rope_scaling with an object for each kind of layers.
bool is_nested(const json& section) {
  return section.is_object() &&
         std::any_of(section.begin(), section.end(), [](const json& value) {
           return value.is_object();
         });
}

}  // namespace

void override_rope(Config& config, const RopeOverride& wanted) {
  if (!wanted.changes()) {
    return;
  }
  json changed = config.json();
  json parameters = json::object();
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    auto section = changed.find(key);
    if (section == changed.end() || section->is_null()) {
      continue;
    }
    if (is_nested(*section)) {
      throw ConfigError(
          cat(config.file(), ": its rotary embedding cannot be replaced"),
          cat(key, " has settings for each kind of layers"),
          "leave the --rope options out");
    }
    parameters = *section;
  }
  // A section may hold the base too, where it goes before the outer one.
  if (wanted.base != 0) {
    changed["rope_theta"] = wanted.base;
    parameters.erase("rope_theta");
  } else if (parameters.contains("rope_theta")) {
    changed["rope_theta"] = parameters["rope_theta"];
  }
  if (wanted.scaling != RopeScaling::as_configured) {
    json partial = parameters.contains("partial_rotary_factor")
                       ? parameters["partial_rotary_factor"]
                       : json();
    parameters = json::object();
    if (!partial.is_null()) {
      parameters["partial_rotary_factor"] = partial;
    }
  }
  if (wanted.scaling == RopeScaling::linear) {
    parameters["rope_type"] = "linear";
    parameters["factor"] = wanted.factor;
    auto context = changed.find("max_position_embeddings");
    if (context != changed.end() && context->is_number()) {
      *context = int64_t(context->get<double>() * wanted.factor);
    }
  }
  changed.erase("rope_scaling");
  changed.erase("rope_parameters");
  if (!parameters.empty()) {
    changed["rope_scaling"] = std::move(parameters);
  }
  WeightsLayout layout = config.layout();
  config = Config(std::move(changed), config.file());
  config.set_layout(layout);
}

}  // namespace mlxcel
