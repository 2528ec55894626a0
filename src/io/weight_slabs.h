// Memory of the tensors that adapters and surgery make. Those too small for
// huge pages of their own share slabs that have them: first writes are most of
// what a small tensor costs.
#pragma once

#include "io/weight_map.h"

#include <algorithm>

namespace mlxcel {

class WeightSlabs {
 public:
  // `expected`: bytes of all tensors that will be made.
  explicit WeightSlabs(size_t expected) : expected_(expected) {}

  // As make_weight.
  WeightTensor make(DType dtype, const Shape& shape, std::byte** data) {
    size_t bytes = size_t(element_count(shape)) * size_of(dtype);
    size_t place = (bytes + kAlign - 1) / kAlign * kAlign;
    size_t slab = std::min(expected_, kSlab);
    expected_ -= std::min(expected_, place);
    if (place == 0 || place > kSmall || (place > left_ && slab < 2 * kSmall)) {
      return make_weight(dtype, shape, data);
    }
    if (place > left_) {
      slab_ = make_weight(DType::u8, {int64_t(slab)}, &next_);
      left_ = slab;
    }
    WeightTensor out;
    out.dtype = dtype;
    out.shape = shape;
    out.data = *data = next_;
    out.bytes = bytes;
    out.owner = slab_.owner;
    next_ += place;
    left_ -= place;
    return out;
  }

 private:
  static constexpr size_t kAlign = 64;
  static constexpr size_t kSmall = size_t(4) << 20;
  static constexpr size_t kSlab = size_t(32) << 20;

  size_t expected_;  // bytes that are still to come
  WeightTensor slab_;
  std::byte* next_ = nullptr;
  size_t left_ = 0;
};

}  // namespace mlxcel
