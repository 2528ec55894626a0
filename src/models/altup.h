// Gemma 3n's block. The model keeps several streams of hidden rows; a block
// predicts all of them from all of them, runs one through attention, a low-rank
// shortcut (laurel) and the MLP, and corrects the others by what came of it.
// Baykal et al. 2023, "Alternating Updates for Efficient Transformers".
#pragma once

#include "models/spec.h"

namespace mlxcel {

struct AltUpBlock : PartSpec {
  AttentionSpec attention;
  MlpSpec mlp;
  double sparsity = 0;  // share of the MLP's gates that are cut off
  StreamSpec streams;
  int laurel_rank = 0;
  int per_layer_size = 0;
  bool scale_corrected = true;

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
