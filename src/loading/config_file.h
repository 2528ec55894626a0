// Reads a checkpoint's config.json and mends the known faults of published
// ones, before anything looks at a value.
#pragma once

#include "io/config.h"

#include <filesystem>
#include <string>
#include <string_view>

namespace mlxcel {

// Mends, in this order:
//   text: a byte order mark, // and /* */ comments, commas before a closing
//     bracket, the literals NaN, Infinity and -Infinity
//   values: numbers and booleans written as strings, outside of fields that are
//     text by nature; numbers inside {"__float__": ...}; "torch.bfloat16" for
//     "bfloat16"
//   layout: the fields of a nested text_config are lifted to the top, where
//     they win over equal names; model_type, architectures and quantization
//     of the top level stay
// A null stays null, which Config treats as absent. `file` names the text in
// messages. Throws ConfigError.
nlohmann::json sanitize_config(std::string_view text, const std::string& file);

// The folder's config.json, sanitized, with the layout of its weights.
Config read_config(const std::filesystem::path& folder);

// The context length under the names that configs use; 0 when none is there.
int64_t max_positions_of(const Config& config);

}  // namespace mlxcel
