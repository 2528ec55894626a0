// Experts in one tensor as publishers store them, brought into the form of an
// MLX conversion.
#pragma once

#include "io/weight_map.h"
#include "loading/sanitize_weights.h"
#include "models/names.h"

namespace mlxcel {

// Spreads the family's published stacks over the tensors of their parts, where
// the checkpoint has them:
//   `<stem>`, float [experts, in, out], becomes `<part>.weight` [experts, out,
//   in]; MXFP4 of `<stem>_blocks` and `<stem>_scales` becomes `<part>.weight`,
//   `.scales` and `.biases` with the same values exactly, affine with 8 bits in
//   groups of 32; `<stem>_bias` [experts, out] becomes `<part>.bias`.
// Throws CheckpointError for other shapes, and for scales beyond any weight's.
void spread_expert_stacks(
    const NameMap& names, WeightMap& weights, TensorData data);

}  // namespace mlxcel
