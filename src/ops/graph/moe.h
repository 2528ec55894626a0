// The mixture of experts in the graph backend.
#pragma once

#include "ops/graph/linear.h"

namespace mlxcel::graph {

// The weighted sum of the experts that the router's logits [rows, experts]
// choose for each row of x.
mx::array mixture(
    const Context& context,
    const mx::array& x,
    const mx::array& logits,
    const MoeWeights& weights);

}  // namespace mlxcel::graph
