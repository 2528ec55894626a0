// A short convolution between two gates, as LFM2 mixes: [B, C, x] = in, then
// out(C * conv(B * x)). Roles: convolution.in, .taps, .taps_bias, .out.
#pragma once

#include "models/recurrent_weights.h"

namespace mlxcel {

struct GatedConvolutionSpec : PartSpec {
  int taps = 0;
  int64_t width = 0;
  bool bias = false;  // of the projections and the convolution

  std::vector<RoleShape> roles(int64_t hidden_size) const override;
  KvLayerSpec cache() const override;
  int64_t columns() const override;
  std::unique_ptr<Sublayer> build(
      const PartBuilder& builder,
      const BlockSpec& block,
      int layer) const override;
};

}  // namespace mlxcel
