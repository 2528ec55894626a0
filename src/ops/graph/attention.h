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

// See Backend::latent_attention.
mx::array latent_attention(
    const Context& context,
    Plan& plan,
    const mx::array& q,
    const mx::array& kv,
    const LatentAttentionArgs& args,
    GraphKvCache& cache,
    int layer);

}  // namespace mlxcel::graph
