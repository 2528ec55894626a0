// What a KvCache offers whose recurrent states can be moved to host memory and
// back, beside KvCache::copy_state between its own slots.
#pragma once

#include <cstddef>

namespace mlxcel {

class StateCopies {
 public:
  virtual ~StateCopies() = default;

  // Of a slot, all layers. What save_state writes is what load_state takes, of
  // one kind of cache only. Both throw ShapeError for a slot that is not there.
  virtual size_t state_bytes() const = 0;
  virtual void save_state(int slot, std::byte* out) = 0;
  virtual void load_state(int slot, const std::byte* in) = 0;
};

}  // namespace mlxcel
