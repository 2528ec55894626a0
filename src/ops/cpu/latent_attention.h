// Latent attention of the CPU backend.
#pragma once

#include "ops/cpu/context.h"

namespace mlxcel::cpu {

std::unique_ptr<HeadLinear> prepare_heads(
    Context& context, HeadWeights weights);

Tensor latent_attention(
    Context& context,
    const Step& step,
    const Tensor& q,
    const Tensor& kv,
    const LatentAttentionArgs& args,
    KvCache& cache,
    int layer);

}  // namespace mlxcel::cpu
