// Parts made of other parts.
#pragma once

#include "models/recurrent_weights.h"

namespace mlxcel {

// Attention beside another mixer on the same normed input:
//   y = mixer_scale * mixer(n) + attention_scale * attention(attention_in * n)
// The attention is the block's.
struct ParallelMixerSpec : PartSpec {
  std::shared_ptr<const PartSpec> mixer;
  AttentionSpec attention;
  float mixer_in = 1, mixer_scale = 1;
  float attention_in = 1, attention_scale = 1;

  std::vector<RoleShape> roles(int64_t hidden_size) const override;
  KvLayerSpec cache() const override;
  const AttentionSpec* grouped_attention() const override {
    return &attention;
  }
  int64_t columns() const override;
  std::unique_ptr<Sublayer> build(
      const PartBuilder& builder,
      const BlockSpec& block,
      int layer) const override;
};

// alpha * n + beta * f(n), n = norm(x): the residual is the normed input. f is
// the half of `block`, whose mixer or feed-forward part may be another.
struct NormedResidualSpec : PartSpec {
  enum class Half : uint8_t { mixer, feed_forward };
  Half half = Half::mixer;
  BlockSpec block;  // the half as it would be without
  float alpha = 1, beta = 1;

  std::vector<RoleShape> roles(int64_t hidden_size) const override;
  KvLayerSpec cache() const override;
  const AttentionSpec* grouped_attention() const override {
    return half == Half::mixer ? attention_of(block) : nullptr;
  }
  bool rotates() const override {
    return half == Half::mixer && has_rotation(block);
  }
  int64_t columns() const override;
  std::unique_ptr<Sublayer> build(
      const PartBuilder& builder,
      const BlockSpec& outer,
      int layer) const override;
};

// Attention whose keys and values pass a causal convolution of `taps` tokens,
// with weights by key/value head, roles attention.conv_k and .conv_v.
struct ConvolvedAttentionSpec : PartSpec {
  AttentionSpec attention;
  int taps = 0;

  std::vector<RoleShape> roles(int64_t hidden_size) const override;
  KvLayerSpec cache() const override;
  const AttentionSpec* grouped_attention() const override {
    return &attention;
  }
  int64_t columns() const override;
  std::unique_ptr<Sublayer> build(
      const PartBuilder& builder,
      const BlockSpec& block,
      int layer) const override;
};

}  // namespace mlxcel
