// Turns adapters into low-rank terms that the backends compute beside the base
// weights, at scales chosen for each row.
#pragma once

#include "adapters/resolve.h"
#include "models/builder.h"

#include <vector>

namespace mlxcel {

// Terms by the linear they belong to, adapter ids in the order given. With a
// tied head an embedding's pair stands under "embedding" as lookup terms and
// under "head" as terms of the projection.
LiveTerms live_terms(
    const std::vector<ResolvedAdapter>& adapters, const DecoderSpec& spec);

}  // namespace mlxcel
