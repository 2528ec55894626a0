#include "ops/cpu/context.h"

#include "ops/cpu/read_ahead.h"

#include <cstdlib>
#include <new>

namespace mlxcel::cpu {

namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kUnit = 4096;  // sizes are whole pages
// Free buffers kept. A step of the decoder has about ten alive at once, one of
// a mixture three more for each expert.
constexpr size_t kMaxFree = 64;

void free_aligned(std::byte* data) {
  ::operator delete(data, std::align_val_t(kAlignment));
}

}  // namespace

std::byte* BufferPool::take(size_t bytes, size_t* capacity) {
  bytes = (bytes + kUnit - 1) / kUnit * kUnit;
  {
    std::lock_guard lock(mutex_);
    // The tightest fit that wastes at most as much again.
    size_t best = free_.size();
    for (size_t i = 0; i < free_.size(); ++i) {
      if (free_[i].capacity >= bytes && free_[i].capacity / 2 <= bytes &&
          (best == free_.size() || free_[i].capacity < free_[best].capacity)) {
        best = i;
      }
    }
    if (best != free_.size()) {
      Free found = free_[best];
      free_[best] = free_.back();
      free_.pop_back();
      *capacity = found.capacity;
      return found.data;
    }
  }
  *capacity = bytes;
  return static_cast<std::byte*>(
      ::operator new(*capacity, std::align_val_t(kAlignment)));
}

void BufferPool::give_back(std::byte* data, size_t capacity) {
  std::lock_guard lock(mutex_);
  if (free_.size() >= kMaxFree) {
    // The oldest goes: its size belongs to a step of another shape.
    free_aligned(free_.front().data);
    free_.erase(free_.begin());
  }
  free_.push_back({data, capacity});
}

BufferPool::~BufferPool() {
  for (const Free& buffer : free_) {
    free_aligned(buffer.data);
  }
}

HostStorage::HostStorage(std::shared_ptr<BufferPool> pool, size_t bytes)
    : pool_(std::move(pool)), bytes_(pool_->take(bytes, &capacity_)) {}

HostStorage::~HostStorage() {
  pool_->give_back(bytes_, capacity_);
}

Context::Context(const BackendOptions& backend_options)
    : options(backend_options),
      isa(choose_isa()),
      pool(backend_options.threads),
      ahead(std::make_shared<ReadAhead>(pool.size())) {}

Tensor Context::make(int64_t rows, int64_t cols) {
  return Tensor(
      DType::f32,
      rows,
      cols,
      std::make_shared<HostStorage>(
          buffers, size_t(rows) * size_t(cols) * sizeof(float)));
}

float* data(const Tensor& tensor) {
  return static_cast<HostStorage*>(tensor.storage())->data();
}

}  // namespace mlxcel::cpu
