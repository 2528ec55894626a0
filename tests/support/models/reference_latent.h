// Latent attention as the models that train it write it, in double precision:
// with the keys and values of every head in full.
#pragma once

#include "support/models/reference_parts.h"

#include <functional>

namespace mlxcel::testing::reference {

// `entry`: what the cache keeps of a position: the latent vector as the key,
// the rotated part as the value.
Tensor latent_attention(
    const Step& step,
    const Tensor& q,
    const Tensor& kv,
    const LatentAttentionArgs& args,
    const std::function<CacheEntry&(const Segment&, int64_t)>& entry);

}  // namespace mlxcel::testing::reference
