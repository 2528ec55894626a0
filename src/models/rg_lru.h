// Griffin's recurrent mixer: a gelu branch y and a branch x through a short
// convolution and the RG-LRU. Roles: rg_lru.y and .x [width, hidden] with
// biases, .conv and .conv_bias, .input_gate, .input_gate_bias,
// .recurrent_gate, .recurrent_gate_bias, .decay [width], .out with a bias.
#pragma once

#include "models/recurrent_weights.h"

namespace mlxcel {

struct RgLruSpec : PartSpec {
  int taps = 0;
  int blocks = 0;
  int64_t width = 0;

  std::vector<RoleShape> roles(int64_t hidden_size) const override;
  KvLayerSpec cache() const override;
  int64_t columns() const override;
  std::unique_ptr<Sublayer> build(
      const PartBuilder& builder,
      const BlockSpec& block,
      int layer) const override;
};

}  // namespace mlxcel
