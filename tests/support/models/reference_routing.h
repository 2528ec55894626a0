// The routing of the reference backend's mixtures.
#pragma once

#include "support/models/reference_parts.h"

#include <utility>
#include <vector>

namespace mlxcel::testing::reference {

// Expert and share of one row's choice, by plain rules.
std::vector<std::pair<size_t, double>> choose(
    const Row& logits, const MoeWeights& weights);

}  // namespace mlxcel::testing::reference
