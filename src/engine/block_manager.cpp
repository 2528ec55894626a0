#include "engine/block_manager.h"

#include <algorithm>
#include <cassert>
#include <climits>

namespace mlxcel {

BlockManager::BlockManager(KvCache& cache, int max_blocks)
    : cache_(cache), max_blocks_(max_blocks) {}

std::optional<int32_t> BlockManager::allocate() {
  if (free_.empty()) {
    int known = int(references_.size());
    if (max_blocks_ > 0 && known >= max_blocks_) {
      if (!reclaimer_ || !reclaimer_()) {
        return std::nullopt;
      }
      return allocate();
    }
    // Growing by an eighth keeps the number of growths logarithmic without
    // holding much more than is in use.
    int wanted = known + std::max(1, known / 8);
    if (max_blocks_ > 0) {
      wanted = std::min(wanted, max_blocks_);
    }
    cache_.reserve(wanted);
    references_.resize(size_t(wanted), 0);
    for (int block = wanted - 1; block >= known; --block) {
      free_.push_back(block);
    }
  }
  int32_t block = free_.back();
  free_.pop_back();
  references_[size_t(block)] = 1;
  ++used_;
  return block;
}

void BlockManager::retain(int32_t block) {
  assert(references(block) > 0);
  ++references_[size_t(block)];
}

void BlockManager::release(int32_t block) {
  assert(references(block) > 0);
  if (--references_[size_t(block)] == 0) {
    free_.push_back(block);
    --used_;
  }
}

std::optional<int32_t> BlockManager::make_writable(int32_t block) {
  if (references(block) == 1) {
    return block;
  }
  std::optional<int32_t> copy = allocate();
  if (copy) {
    cache_.copy_block(block, *copy);
    release(block);
  }
  return copy;
}

int BlockManager::available() const {
  return max_blocks_ > 0 ? max_blocks_ - used_ : INT_MAX;
}

}  // namespace mlxcel
