#include "io/weight_map.h"

#include "core/error.h"
#include "core/half.h"

#include <sys/mman.h>

#include <cstdlib>
#include <limits>
#include <new>
#include <utility>

namespace mlxcel {

WeightTensor make_weight(DType dtype, Shape shape, std::byte** data) {
  // Large tensors lie in huge pages: their first writes then cost less.
  constexpr size_t kHugePage = size_t(2) << 20;
  constexpr size_t kLarge = 2 * kHugePage;
  size_t count = size_of(dtype);
  for (int64_t dim : shape) {
    if (dim < 0 || __builtin_mul_overflow(count, uint64_t(dim), &count) ||
        count > size_t(std::numeric_limits<int64_t>::max()) / 2) {
      throw CheckpointError(
          "cannot make a tensor", cat("shape ", to_string(shape)));
    }
  }
  size_t alignment = count >= kLarge ? kHugePage : 64;
  size_t capacity = (count + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, std::max(capacity, alignment));
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  if (count >= kLarge) {
    // Whole huge pages alone: a rounded-up end would take memory for nothing.
    ::madvise(memory, count / kHugePage * kHugePage, MADV_HUGEPAGE);
  }
  std::shared_ptr<const void> owner(memory, [](const void* address) {
    std::free(const_cast<void*>(address));
  });
  *data = static_cast<std::byte*>(memory);
  WeightTensor tensor;
  tensor.dtype = dtype;
  tensor.shape = std::move(shape);
  tensor.data = *data;
  tensor.bytes = count;
  tensor.owner = std::move(owner);
  return tensor;
}

namespace {

template <typename Stored, typename Convert>
void convert_each(
    const std::byte* from, int64_t count, float* out, Convert convert) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = convert(load_unaligned<Stored>(from + size_t(i) * sizeof(Stored)));
  }
}

}  // namespace

void read_as_f32(
    const WeightTensor& tensor, int64_t first, int64_t count, float* out) {
  if (!is_float(tensor.dtype)) {
    throw CheckpointError(
        "cannot read a tensor as numbers",
        cat("it holds ", tensor.dtype, ", a packed or integer type"));
  }
  const std::byte* from = tensor.data + size_t(first) * size_of(tensor.dtype);
  switch (tensor.dtype) {
    case DType::f16:
      return convert_each<uint16_t>(from, count, out, f16_to_f32);
    case DType::bf16:
      return convert_each<uint16_t>(from, count, out, bf16_to_f32);
    case DType::f64:
      return convert_each<double>(
          from, count, out, [](double value) { return float(value); });
    default:
      return convert_each<float>(
          from, count, out, [](float value) { return value; });
  }
}

void read_as_f32(const WeightTensor& tensor, float* out) {
  read_as_f32(tensor, 0, element_count(tensor.shape), out);
}

bool WeightMap::contains(std::string_view key) const {
  return tensors_.find(key) != tensors_.end();
}

const WeightTensor* WeightMap::find(std::string_view key) const {
  auto found = tensors_.find(key);
  return found == tensors_.end() ? nullptr : &found->second;
}

const WeightTensor& WeightMap::at(std::string_view key) const {
  const WeightTensor* tensor = find(key);
  if (tensor == nullptr) {
    throw CheckpointError(
        cat("the checkpoint has no tensor \"", key, "\""),
        did_you_mean(key, keys()),
        "check that all of the checkpoint's files are there");
  }
  return *tensor;
}

void WeightMap::set(std::string key, WeightTensor tensor) {
  tensors_.insert_or_assign(std::move(key), std::move(tensor));
}

void WeightMap::erase(std::string_view key) {
  auto found = tensors_.find(key);
  if (found != tensors_.end()) {
    tensors_.erase(found);
  }
}

void WeightMap::rename(std::string_view from, std::string to) {
  if (from == to) {
    return;
  }
  auto found = tensors_.find(from);
  if (found == tensors_.end()) {
    at(from);  // throws with the nearest names
  }
  if (contains(to)) {
    throw CheckpointError(
        cat("cannot rename tensor \"", from, "\""),
        cat("\"", to, "\" exists already"));
  }
  auto node = tensors_.extract(found);
  node.key() = std::move(to);
  tensors_.insert(std::move(node));
}

std::vector<std::string> WeightMap::keys() const {
  std::vector<std::string> out;
  out.reserve(tensors_.size());
  for (const auto& [key, tensor] : tensors_) {
    out.push_back(key);
  }
  return out;
}

size_t WeightMap::total_bytes() const {
  size_t bytes = 0;
  for (const auto& [key, tensor] : tensors_) {
    bytes += tensor.bytes;
  }
  return bytes;
}

}  // namespace mlxcel
