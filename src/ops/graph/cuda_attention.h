// Attention on CUDA devices where every row is a sequence's next token, by
// kernels of our own: one turns queries and keys and fills the cache in place,
// one reads the cache where it lies. MLX's operations for the same are a dozen
// a layer, whose encoding takes the host longer than the device computes.
#pragma once

#include "ops/graph/kv_cache.h"
#include "ops/graph/plan.h"

namespace mlxcel::graph {

// Whether the kernels take the step and the options; else nothing of them is
// used.
bool cuda_takes_attention(
    const Context& context,
    const Plan& plan,
    const mx::array& qkv,
    const AttentionArgs& args,
    const GraphKvCache& cache,
    int layer);

// qkv [rows, (heads + 2 kv_heads) * dim or more]; gives [rows, heads * dim].
// The keys and values lie in the cache when the result is there.
mx::array cuda_attention(
    Plan& plan,
    const mx::array& qkv,
    const AttentionArgs& args,
    const GraphKvCache& cache,
    int layer);

}  // namespace mlxcel::graph
