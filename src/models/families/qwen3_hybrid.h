// What Qwen 3 Next and the Qwen 3.5 families share: gated delta layers with
// gated attention in every fourth.
#pragma once

#include "models/gated_delta.h"
#include "models/names.h"

#include <vector>

namespace mlxcel {

// All of a decoder but mixtures of experts.
DecoderSpec qwen3_hybrid_decoder(
    const Config& config, const MlpSpec& mlp, DeltaProjections projections);
std::vector<NameRule> qwen3_hybrid_names();

// The names of Qwen 3.5, beside a tower or alone, with the rules of a mixture.
FamilyNames qwen3_5_names(const std::vector<NameRule>& mixture = {});

}  // namespace mlxcel
