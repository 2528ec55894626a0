#include "engine/state_slots.h"

namespace mlxcel {

int32_t StateSlots::take() {
  if (free_.empty()) {
    // The cache may grow by more than was asked for.
    int known = cache_.num_states();
    cache_.reserve_states(known + 1);
    for (int32_t slot = cache_.num_states() - 1; slot >= known; --slot) {
      free_.push_back(slot);
    }
  }
  int32_t slot = free_.back();
  free_.pop_back();
  return slot;
}

int32_t StateSlots::allocate() {
  if (!needed()) {
    return -1;
  }
  int32_t slot = take();
  cache_.clear_state(slot);
  return slot;
}

int32_t StateSlots::allocate_copy(int32_t from) {
  if (!needed()) {
    return -1;
  }
  int32_t slot = take();
  cache_.copy_state(from, slot);
  return slot;
}

int32_t StateSlots::allocate_loaded(const std::byte* in) {
  int32_t slot = take();
  try {
    copies_->load_state(slot, in);
  } catch (...) {
    release(slot);
    throw;
  }
  return slot;
}

void StateSlots::release(int32_t slot) {
  if (slot >= 0) {
    free_.push_back(slot);
  }
}

}  // namespace mlxcel
