// The mixer of Mamba 2: one projection to z, x, B, C and dt, then a short
// convolution, the recurrence of its heads and a gated norm. Roles:
//   ssm.in      [2 * inner + 2 * groups * state_size + heads, hidden]
//   ssm.conv, ssm.conv_bias
//   ssm.a_log, ssm.d, ssm.dt_bias   [heads]
//   ssm.norm    [inner], unless the gate is plain
//   ssm.out     [hidden, inner]
#pragma once

#include "models/recurrent_weights.h"

#include <array>

namespace mlxcel {

struct StateSpaceHeads {
  int heads = 0, groups = 0;
  int64_t head_dim = 0, state_size = 0;
  int64_t inner() const {
    return heads * head_dim;
  }
};

struct StateSpaceBias {
  bool in = false, out = false;
};

struct StateSpaceLimits {
  float dt_min = 0, dt_max = 0;
};

struct StateSpaceSpec : PartSpec {
  StateSpaceHeads heads;
  int taps = 0;
  bool convolution_bias = false;
  StateSpaceBias bias;
  StateSpaceLimits limits;
  GateForm gate = GateForm::norm_of_gated;  // by group of heads
  float norm_eps = 0;
  // On the projection's z, x, B, C and dt.
  std::array<float, 5> multipliers{1, 1, 1, 1, 1};

  int64_t channels() const {
    return heads.inner() + 2 * heads.groups * heads.state_size;
  }
  ConvolutionSpec convolution() const {
    return {taps, channels(), convolution_bias};
  }
  std::vector<RoleShape> roles(int64_t hidden_size) const override;
  KvLayerSpec cache() const override;
  int64_t columns() const override;
  std::unique_ptr<Sublayer> build(
      const PartBuilder& builder,
      const BlockSpec& block,
      int layer) const override;
};

}  // namespace mlxcel
