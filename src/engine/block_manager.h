// Who owns which KV block: a free list, reference counts for blocks that
// sequences and cached prefixes share, and copy on write.
#pragma once

#include "ops/kv_cache.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace mlxcel {

class BlockManager {
 public:
  // `max_blocks` 0 means as many as memory allows.
  explicit BlockManager(KvCache& cache, int max_blocks = 0);

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

 private:
  KvCache& cache_;
  int max_blocks_;
  int used_ = 0;
  std::vector<int32_t> references_;
  std::vector<int32_t> free_;
};

// How many blocks hold this many positions.
inline int64_t blocks_for(int64_t positions) {
  return (positions + kKvBlockSize - 1) / kKvBlockSize;
}

}  // namespace mlxcel
