// Adds adapters to the base weights before the model is built.
#pragma once

#include "adapters/resolve.h"
#include "core/thread_pool.h"

#include <functional>
#include <vector>

namespace mlxcel {

struct ScaledAdapter {
  const ResolvedAdapter* adapter = nullptr;
  float scale = 1;  // run-time scale
};

// weight += scale * factor * (B A) for every pair, computed in f32 and rounded
// once to the weight's dtype. Several adapters add in the order of their
// digests, so the order given does not change a bit; scale zero changes
// nothing. Only changed tensors are copied. With a tied head an embedding pair
// changes the head's entry as well. Throws AdapterError, before anything
// changes, when a base weight is packed.
void fuse_adapters(
    const std::vector<ScaledAdapter>& adapters,
    const AdapterBase& base,
    WeightMap& weights,
    ThreadPool& pool,
    const std::function<void(double done)>& progress = {});

}  // namespace mlxcel
