// Slots of recurrent state: each belongs to one sequence or one cached prefix.
// A model without recurrent layers needs none, and nothing here does anything.
#pragma once

#include "ops/kv_cache.h"

#include <cstdint>
#include <vector>

namespace mlxcel {

class StateSlots {
 public:
  explicit StateSlots(KvCache& cache) : cache_(cache) {}

  bool needed() const {
    return cache_.spec().bytes_per_state() > 0;
  }
  int64_t bytes() const {
    return cache_.spec().bytes_per_state();
  }
  // A slot of zeros, or with the content of another. -1: none is needed.
  // Grows the cache as needed.
  int32_t allocate();
  int32_t allocate_copy(int32_t from);
  void release(int32_t slot);  // -1 is allowed
  int used() const {
    return cache_.num_states() - int(free_.size());
  }

 private:
  int32_t take();

  KvCache& cache_;
  std::vector<int32_t> free_;
};

}  // namespace mlxcel
