// RWKV-7's two halves. Time mixing, roles rwkv.*: mix_r, mix_w, mix_k, mix_v,
// mix_a, mix_g [hidden]; r, k, v, out [hidden, hidden]; low-rank pairs w_low
// and w_high, the same of a, g and (not in layer 0) v; k_k, k_a, r_k, norm,
// norm_bias [hidden]. Channel mixing: channel.mix [hidden], channel.key,
// channel.value.
#pragma once

#include "models/recurrent_weights.h"

namespace mlxcel {

struct RwkvRanks {
  int w = 0, a = 0, v = 0, g = 0;
};

struct TimeMixingSpec : PartSpec {
  int heads = 0;
  int64_t head_dim = 0;
  RwkvRanks ranks;
  bool first_layer = false;  // its values serve the later layers
  int64_t state_after = 0;   // what the block's other half keeps

  std::vector<RoleShape> roles(int64_t hidden_size) const override;
  KvLayerSpec cache() const override;
  int64_t columns() const override;
  std::unique_ptr<Sublayer> build(
      const PartBuilder& builder,
      const BlockSpec& block,
      int layer) const override;
};

struct ChannelMixingSpec : PartSpec {
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t state = 0;  // where its part of the layer's state begins

  std::vector<RoleShape> roles(int64_t hidden) const override;
  int64_t columns() const override;
  std::unique_ptr<Sublayer> build(
      const PartBuilder& builder,
      const BlockSpec& block,
      int layer) const override;
};

}  // namespace mlxcel
