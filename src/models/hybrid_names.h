// Names of tensors in hybrid models that would fill a family's file.
#pragma once

#include "models/names.h"

namespace mlxcel {

// Kimi Linear's: as published, and as transformers writes them, the decay's
// projections below `forget_gate` and one convolution for q, k and v.
FamilyNames kimi_linear_names();

// Nemotron H's, whose layers call every part of theirs `mixer`.
FamilyNames nemotron_h_names();

// The publisher's stacks of experts below `block` ("layers.{l}.mlp."), gate and
// up in one, [experts, out, in].
std::vector<PublishedStack> stacked_expert_names(const std::string& block);

}  // namespace mlxcel
