// The tensors of a checkpoint by key: the seam that surgery, adapters and the
// models share. A tensor lies in a mapped file until something changes it;
// then an owned copy takes its place.
#pragma once

#include "core/dtype.h"

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mlxcel {

// One tensor of a checkpoint: row-major, at ANY alignment (safetensors data may
// start at any byte), never written through this view.
struct WeightTensor {
  DType dtype = DType::f32;
  Shape shape;
  const std::byte* data = nullptr;
  size_t bytes = 0;
  std::string file;  // where it came from, for messages; "" when computed
  std::shared_ptr<const void> owner;  // keeps `data` alive

  int64_t dim(int axis) const {
    return shape[size_t(axis)];
  }
  int64_t ndim() const {
    return int64_t(shape.size());
  }
  bool mapped() const {  // still the file's bytes
    return !file.empty();
  }
};

// A new owned tensor with uninitialized content (64-byte aligned); `*data`
// receives the writable address.
WeightTensor make_weight(DType dtype, Shape shape, std::byte** data);

// Element conversions of whole tensors, any float dtype and alignment.
void read_as_f32(const WeightTensor& tensor, float* out);
void read_as_f32(
    const WeightTensor& tensor, int64_t first, int64_t count, float* out);

class WeightMap {
 public:
  bool contains(std::string_view key) const;
  const WeightTensor* find(std::string_view key) const;  // null when absent
  // Throws CheckpointError that names the key and the nearest ones.
  const WeightTensor& at(std::string_view key) const;

  void set(std::string key, WeightTensor tensor);  // inserts or replaces
  void erase(std::string_view key);
  void rename(std::string_view from, std::string to);

  size_t size() const {
    return tensors_.size();
  }
  auto begin() const {
    return tensors_.begin();
  }
  auto end() const {
    return tensors_.end();
  }
  std::vector<std::string> keys() const;  // sorted
  size_t total_bytes() const;

 private:
  std::map<std::string, WeightTensor, std::less<>> tensors_;
};

}  // namespace mlxcel
