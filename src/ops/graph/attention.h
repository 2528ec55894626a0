// Attention of the graph backend over its paged cache.
#pragma once

#include "ops/graph/kv_cache.h"
#include "ops/graph/norm.h"
#include "ops/graph/plan.h"

namespace mlxcel::graph {

// See Backend::attention.
mx::array attention(
    const Context& context,
    Plan& plan,
    const mx::array& qkv,
    const AttentionArgs& args,
    GraphKvCache& cache,
    int layer,
    const mx::array* shared);

}  // namespace mlxcel::graph
