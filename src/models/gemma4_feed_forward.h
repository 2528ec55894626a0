// The second half of Gemma 4's blocks: the MLP, in some models beside a mixture
// of experts, then the layer's own input, then one factor on the whole.
//
// Roles below the layer, beside those of the MLP and of the experts:
//   mlp.dense_norm      on the MLP's result, where there are experts
//   moe.input_norm      of what the experts read
//   moe.output_norm     on their sum
//   moe.router_norm     weight [hidden] of the router's own norm
//   moe.share_scale     [experts], on the shares
//   scalar              [1], on the block's result
#pragma once

#include "models/spec.h"

#include <optional>

namespace mlxcel {

struct Gemma4FeedForward : PartSpec {
  MlpSpec mlp;
  std::optional<MoeSpec> moe;
  int per_layer_size = 0;  // 0: no input of its own

  std::vector<RoleShape> roles(int64_t hidden_size) const override;
  int64_t columns() const override;
  std::unique_ptr<Sublayer> build(
      const PartBuilder& builder,
      const BlockSpec& block,
      int layer) const override;
};

}  // namespace mlxcel
