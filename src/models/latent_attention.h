// Multi-head latent attention: keys and values of all heads are read from one
// small vector a position, which alone is cached beside a rotated key
// (DeepSeek-AI 2024, "DeepSeek-V2", section 2.1).
//
// Roles below the layer:
//   attention.q                     queries, or through a smaller vector
//   attention.q_a, .q_a_norm, .q_b
//   attention.kv_a, .kv_a_norm      latent vector and rotated key; the norm is
//                                   of the former
//   attention.kv_b                  of each head: keys, then values; or
//   attention.heads.{e}.key_up      the same transposed [latent, plain],
//   attention.heads.{e}.value_up    and [value, latent]
//   attention.o
#pragma once

#include "models/names.h"
#include "models/spec.h"

#include <memory>
#include <vector>

namespace mlxcel {

struct LatentDims {
  int heads = 0;
  int plain = 0;       // features of a query head that do not turn
  int rope = 0;        // those that do
  int value = 0;       // features of a value
  int latent = 0;      // of the vector that is cached
  int query_rank = 0;  // of the vector that queries come from; 0: none
};

struct LatentAttentionSpec {
  LatentDims dims;
  float scale = 0;                           // on q k^T
  float latent_scale = 1;                    // on the normed latent vector
  std::shared_ptr<const RopeTable> rope;     // null: nothing turns
  NormSpec norm;                             // of both small vectors
  AttentionBias bias = AttentionBias::none;  // all: on q_a, kv_a and o
};

class LatentAttention : public PartSpec {
 public:
  explicit LatentAttention(LatentAttentionSpec spec) : spec_(std::move(spec)) {}
  std::vector<RoleShape> roles(int64_t hidden_size) const override;
  KvLayerSpec cache() const override;
  bool rotates() const override {
    return spec_.rope != nullptr;
  }
  int64_t columns() const override;
  std::unique_ptr<Sublayer> build(
      const PartBuilder& builder,
      const BlockSpec& block,
      int layer) const override;

 private:
  LatentAttentionSpec spec_;
};

// The rules of the stems below `block` ("layers.{l}.self_attn"): as published,
// and as MLX splits kv_b_proj.
std::vector<NameRule> latent_names(
    const std::string& block = "layers.{l}.self_attn");

}  // namespace mlxcel
