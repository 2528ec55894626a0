// The mixer of Mamba: a projection to x and z, a short convolution, the
// selective scan and an output projection. Roles:
//   mamba.in            [2 * channels, hidden], x then z
//   mamba.conv, mamba.conv_bias
//   mamba.dt_low        [dt_rank, channels]
//   mamba.b, mamba.c    [state_size, channels]
//   mamba.dt            [channels, dt_rank], with a bias
//   mamba.dt_norm, mamba.b_norm, mamba.c_norm   with learned inner norms
//   mamba.a_log         [channels, state_size]
//   mamba.d             [channels]
//   mamba.out           [hidden, channels]
#pragma once

#include "models/recurrent_weights.h"

namespace mlxcel {

// Root-mean-square norms on dt, B and C.
enum class InnerNorms : uint8_t { none, weightless, learned };

struct MambaSpec : PartSpec {
  int64_t channels = 0;
  int64_t state_size = 0;
  int64_t dt_rank = 0;
  ConvolutionSpec convolution;
  bool projection_bias = false;  // of `in` and `out`
  InnerNorms inner_norms = InnerNorms::none;
  float inner_eps = 0;

  std::vector<RoleShape> roles(int64_t hidden_size) const override;
  KvLayerSpec cache() const override;
  int64_t columns() const override;
  std::unique_ptr<Sublayer> build(
      const PartBuilder& builder,
      const BlockSpec& block,
      int layer) const override;
};

}  // namespace mlxcel
