// The mixer of the gated delta rule. Projections stand in one of three ways:
//   packed    delta.qkvz and delta.ba: by key head, as Qwen 3 Next stores them
//   separate  delta.q .k .v .z .b .a
//   channels  delta.q .k .v .b; the decay and the gate come through low ranks,
//             delta.decay_low .decay and delta.gate_low .gate: Kimi Linear
// and delta.conv, or delta.conv_q .conv_k .conv_v; delta.a_log, delta.dt_bias,
// delta.norm [value_dim], delta.out.
#pragma once

#include "models/recurrent_weights.h"

namespace mlxcel {

enum class DeltaProjections : uint8_t { packed, separate, channels };

struct DeltaHeads {
  int key_heads = 0, value_heads = 0;
  int64_t key_dim = 0, value_dim = 0;
  int64_t keys() const {
    return key_heads * key_dim;
  }
  int64_t values() const {
    return value_heads * value_dim;
  }
};

struct GatedDeltaSpec : PartSpec {
  DeltaHeads heads;
  int taps = 0;
  DeltaProjections projections = DeltaProjections::packed;
  bool split_convolution = false;  // one tensor for each of q, k and v
  float beta_scale = 1;
  GateForm gate = GateForm::silu_of_norm;
  float norm_eps = 0;

  std::vector<RoleShape> roles(int64_t hidden_size) const override;
  KvLayerSpec cache() const override;
  int64_t columns() const override;
  std::unique_ptr<Sublayer> build(
      const PartBuilder& builder,
      const BlockSpec& block,
      int layer) const override;
};

}  // namespace mlxcel
