// The shapes of published models, as the configs of random checkpoints.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>

namespace mlxcel::cli {

// The names, for messages: "1b, 8b, ...".
std::string random_shape_names();

// The config.json of a shape, unquantized: of a known name, or from the file
// whose path ends in ".json". Throws UsageError for unknown names.
nlohmann::ordered_json random_shape_config(const std::string& name);

}  // namespace mlxcel::cli
