// Other rotary settings than the checkpoint's, as a user asks for them.
#pragma once

#include "io/config.h"

#include <cstdint>

namespace mlxcel {

enum class RopeScaling : uint8_t {
  as_configured,
  none,
  linear,  // positions are divided by the factor
};

struct RopeOverride {
  RopeScaling scaling = RopeScaling::as_configured;
  double factor = 1;
  double base = 0;  // rope_theta; 0: the config's

  bool changes() const {
    return scaling != RopeScaling::as_configured || base != 0;
  }
};

// Rewrites rope_theta, rope_scaling and rope_parameters; a linear factor
// lengthens the context that the config states. Throws ConfigError for a
// config whose layers have rotations of their own.
void override_rope(Config& config, const RopeOverride& wanted);

}  // namespace mlxcel
