#include "server/capacity.h"

#include "core/error.h"
#include "core/log.h"
#include "engine/block_manager.h"
#include "engine/memory.h"

#include <algorithm>

namespace mlxcel::server {

namespace {

// Enough to fill the products of a CPU; more waits than it helps.
constexpr int kAutomaticSlots = 32;
// Less context than this is of no use to anyone.
constexpr int64_t kLeastContext = 512;
// Of the free memory, when the KV cache may choose.
constexpr double kMemoryShare = 0.6;

}  // namespace

Capacity capacity_of(
    const CapacityOptions& options,
    const KvCacheSpec& cache,
    int64_t model_positions) {
  Capacity out;
  out.slots = options.slots > 0 ? options.slots : kAutomaticSlots;
  int64_t block_bytes = cache.bytes_per_block();
  int64_t context = model_positions;
  if (options.ctx_size > 0) {
    int64_t own = std::max(kLeastContext, options.ctx_size / out.slots);
    if (context > 0 && own > context) {
      log_warning(
          cat("--ctx-size gives each slot ",
              own,
              " positions, more than the model's ",
              context,
              "; it gets those"));
    }
    context = context > 0 ? std::min(context, own) : own;
  }
  if (options.max_positions > 0) {
    context = context > 0 ? std::min(context, options.max_positions)
                          : options.max_positions;
  }
  out.context = context;
  if (block_bytes == 0) {
    return out;
  }
  int64_t blocks = options.kv_bytes / block_bytes;
  if (options.kv_bytes == 0) {
    // All slots full, and what the prefix cache may hold, if there is room.
    int64_t wanted = options.prefix_cache.bytes / block_bytes;
    wanted += context > 0 ? blocks_for(context) * out.slots : int64_t(1) << 30;
    double free = kMemoryShare * double(available_memory());
    blocks = free > 0 ? std::min(wanted, int64_t(free) / block_bytes) : wanted;
  }
  if (blocks < 1) {
    throw UsageError(
        "no room for the KV cache",
        cat("a block of ",
            kKvBlockSize,
            " positions takes ",
            block_bytes,
            " bytes"),
        "give a larger --kv-cache-budget, or free memory");
  }
  out.max_blocks = int(std::min<int64_t>(blocks, 1 << 30));
  int64_t room = int64_t(out.max_blocks) * kKvBlockSize;
  if (out.context == 0 || out.context > room) {
    out.context = room;
  }
  if (room / out.slots < std::min(out.context, kLeastContext)) {
    log_warning(
        cat("the KV cache has room for ",
            room,
            " positions, ",
            room / out.slots,
            " for each of ",
            out.slots,
            " slots: answers will wait for each other, or fail; give a larger "
            "--kv-cache-budget or fewer --parallel"));
  }
  return out;
}

}  // namespace mlxcel::server
