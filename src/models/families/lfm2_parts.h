// What LFM2 and its mixture of experts share.
#pragma once

#include "models/gated_convolution.h"
#include "models/names.h"

namespace mlxcel {

// All of a decoder but the sizes of its feed-forward parts.
DecoderSpec lfm2_layers(const Config& config);
std::vector<NameRule> lfm2_block_names();

}  // namespace mlxcel
