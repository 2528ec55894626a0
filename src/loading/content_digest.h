// Identity of what a model computes with: its config and its tensors.
#pragma once

#include "io/config.h"
#include "io/weight_map.h"

#include <string>

namespace mlxcel {

// SHA-256 in hex over the config and each tensor's key, dtype, shape and bytes,
// so that a recipe or a fused adapter changes it. Reads all weights, on this
// many threads (0: what the process may use).
std::string content_digest(
    const Config& config, const WeightMap& weights, int threads);

}  // namespace mlxcel
