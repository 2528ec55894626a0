// Turns adapters into low-rank terms that the backends compute beside the base
// weights, at scales chosen for each row.
#pragma once

#include "adapters/resolve.h"
#include "ops/weights.h"

#include <map>
#include <string>
#include <vector>

namespace mlxcel {

// Terms by the linear they belong to (linear_slot), adapter ids in the order
// given. "embedding" holds lookup terms; with a tied head, the same pairs stand
// under "head" as terms of the projection.
using LiveTerms = std::map<std::string, std::vector<LowRankTerm>, std::less<>>;

LiveTerms live_terms(
    const std::vector<ResolvedAdapter>& adapters, const DecoderSpec& spec);

}  // namespace mlxcel
