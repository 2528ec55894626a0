// Rotary position tables from a config: plain, linear, llama3, yarn and
// longrope scaling, in the older form (rope_theta, rope_scaling) and the newer
// one (rope_parameters, flat or one object a layer type).
#pragma once

#include "io/config.h"
#include "ops/weights.h"

#include <memory>
#include <string_view>

namespace mlxcel {

struct RopeDefaults {
  double theta = 10000;      // where the config states none
  bool interleaved = false;  // pairs (2i, 2i+1) instead of (i, i + dims/2)
  double partial = 1;        // share of a head's features that turn
  bool backwards = false;    // turn the other way round
  // Which object of nested rope_parameters to read; unused when flat.
  std::string_view layer_type = "full_attention";
};

// Throws ConfigError for scaling types that are not supported and for values
// that give no usable table.
std::shared_ptr<const RopeTable> rope_table(
    const Config& config, int head_dim, const RopeDefaults& defaults = {});

}  // namespace mlxcel
