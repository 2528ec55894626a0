// The second half of Gemma 4's blocks: the MLP, then the layer's own input,
// then one factor on the whole.
#pragma once

#include "models/spec.h"

namespace mlxcel {

struct Gemma4FeedForward : PartSpec {
  MlpSpec mlp;
  int per_layer_size = 0;  // 0: no input of its own

  std::vector<RoleShape> roles(int64_t hidden_size) const override;
  int64_t columns() const override;
  std::unique_ptr<Sublayer> build(
      const PartBuilder& builder,
      const BlockSpec& block,
      int layer) const override;
};

}  // namespace mlxcel
