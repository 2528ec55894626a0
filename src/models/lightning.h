// Lightning attention: linear attention whose state decays at a fixed rate a
// head, a norm and a sigmoid gate. Roles: lightning.qkv [3 * inner, hidden] (q,
// k and v of a head side by side), .gate [inner, hidden], .norm [inner], .out;
// and, all four or none, the rates and the tables that published code makes of
// them for blocks of tokens: .slope [heads, 1, 1], .query_decay and .key_decay
// [heads, block, 1], .diagonal_decay [1, heads, block, block].
//
// Where the tables follow from the stored rates, the layer is a recurrence.
// Otherwise they count as they are stored, and the model is one of whole
// sequences (ContextTraits).
#pragma once

#include "models/recurrent_weights.h"

namespace mlxcel {

struct LightningSpec : PartSpec {
  int heads = 0;
  int64_t head_dim = 0;
  int64_t block_size = 0;  // of the stored tables
  float norm_eps = 0;
  // Of the layer: the slopes shrink from the first layer to the last.
  float slope_factor = 1;

  std::vector<RoleShape> roles(int64_t hidden_size) const override;
  KvLayerSpec cache() const override;
  int64_t columns() const override;
  std::unique_ptr<Sublayer> build(
      const PartBuilder& builder,
      const BlockSpec& block,
      int layer) const override;
};

}  // namespace mlxcel
