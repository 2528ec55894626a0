// How a server shares its memory among sequences.
#pragma once

#include "ops/kv_cache.h"
#include "server/server.h"

#include <cstdint>

namespace mlxcel::server {

// How many positions a sequence may have, and how many blocks there are.
struct Capacity {
  int slots = 1;
  int64_t context = 0;
  int max_blocks = 0;
};

// For a model whose config states `model_positions` (0: none). Logs warnings;
// throws UsageError when not even one block has room.
Capacity capacity_of(
    const CapacityOptions& options,
    const KvCacheSpec& cache,
    int64_t model_positions);

}  // namespace mlxcel::server
