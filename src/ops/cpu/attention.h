// The CPU backend's attention and its paged cache.
#pragma once

#include "ops/cpu/context.h"

namespace mlxcel::cpu {

std::unique_ptr<KvCache> make_kv_cache(const KvCacheSpec& spec);
std::unique_ptr<Rope> prepare_rope(RopeTable table);

Tensor attention(
    Context& context,
    const Step& step,
    const Tensor& qkv,
    const AttentionArgs& args,
    KvCache& cache,
    int layer,
    const Tensor* shared = nullptr);

}  // namespace mlxcel::cpu
