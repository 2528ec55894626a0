// Slots of recurrent state: each belongs to one sequence or one cached prefix.
// A model without recurrent layers needs none, and nothing here does anything.
#pragma once

#include "ops/kv_cache.h"
#include "ops/state_copies.h"

#include <cstdint>
#include <vector>

namespace mlxcel {

class StateSlots {
 public:
  explicit StateSlots(KvCache& cache)
      : cache_(cache), copies_(dynamic_cast<StateCopies*>(&cache)) {}

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

  // A slot's content in host memory, and a slot with such content. Where
  // can_save() is false the cache has no such way.
  bool can_save() const {
    return !needed() || copies_ != nullptr;
  }
  size_t saved_bytes() const {
    return needed() && copies_ != nullptr ? copies_->state_bytes() : 0;
  }
  void save(int32_t slot, std::byte* out) const {
    copies_->save_state(slot, out);
  }
  int32_t allocate_loaded(const std::byte* in);
  int used() const {
    return cache_.num_states() - int(free_.size());
  }

 private:
  int32_t take();

  KvCache& cache_;
  StateCopies* copies_;  // null where the cache has no way
  std::vector<int32_t> free_;
};

}  // namespace mlxcel
