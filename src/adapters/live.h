// Turns adapters into low-rank terms that the backends compute beside the base
// weights, at scales chosen for each row.
#pragma once

#include "adapters/resolve.h"
#include "models/builder.h"

#include <vector>

namespace mlxcel {

struct LiveAdapter {
  int id = 0;  // of its scale in Segment::adapter_scales
  const ResolvedAdapter* adapter = nullptr;
};

// Terms by the linear they belong to. With a tied head an embedding's pair
// stands under "embedding" as lookup terms and under "head" as terms of the
// projection. Throws AdapterError for a pair on an expert of a mixture, which
// can only be fused.
LiveTerms live_terms(
    const std::vector<LiveAdapter>& adapters, const DecoderSpec& spec);

}  // namespace mlxcel
