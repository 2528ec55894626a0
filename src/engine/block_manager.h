// Who owns which KV block: a free list, reference counts for blocks that
// sequences and cached prefixes share, and copy on write.
#pragma once

#include "ops/kv_cache.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

namespace mlxcel {

class BlockManager {
 public:
  // `max_blocks` 0 means as many as memory allows.
  explicit BlockManager(KvCache& cache, int max_blocks = 0);

  // Asked when the limit is reached: gives a block back and returns true, or
  // false when it has none.
  void set_reclaimer(std::function<bool()> reclaimer) {
    reclaimer_ = std::move(reclaimer);
  }

  // A block with one reference, or nothing when the limit is reached. Grows the
  // cache as needed.
  std::optional<int32_t> allocate();
  void retain(int32_t block);
  void release(int32_t block);
  int references(int32_t block) const {
    return references_[size_t(block)];
  }

  // A block with this one's content that only the caller refers to: itself, or
  // a copy in whose favour the caller's reference to it is given up.
  std::optional<int32_t> make_writable(int32_t block);

  int used() const {
    return used_;
  }
  // How many more can be allocated; INT_MAX without a limit.
  int available() const;
  int max_blocks() const {
    return max_blocks_;
  }
  int64_t block_bytes() const {
    return int64_t(cache_.block_bytes());
  }

  // The block's content in host memory, and back.
  void save(int32_t block, std::byte* out) {
    cache_.save_block(block, out);
  }
  void load(int32_t block, const std::byte* in) {
    cache_.load_block(block, in);
  }

 private:
  KvCache& cache_;
  int max_blocks_;
  std::function<bool()> reclaimer_;
  int used_ = 0;
  std::vector<int32_t> references_;
  std::vector<int32_t> free_;
};

// How many blocks hold this many positions.
inline int64_t blocks_for(int64_t positions) {
  return (positions + kKvBlockSize - 1) / kKvBlockSize;
}

}  // namespace mlxcel
