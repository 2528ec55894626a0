// What the parts of the CPU backend share: the thread pool, the chosen
// instruction set and recycled activation buffers.
#pragma once

#include "core/cpu_features.h"
#include "core/tensor.h"
#include "core/thread_pool.h"
#include "ops/backend.h"

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace mlxcel::cpu {

struct NormKernels;
class ReadAhead;

// Recycles 64-byte aligned buffers, so that a decode step allocates nothing.
class BufferPool {
 public:
  std::byte* take(size_t bytes, size_t* capacity);
  void give_back(std::byte* data, size_t capacity);
  ~BufferPool();

 private:
  struct Free {
    std::byte* data;
    size_t capacity;
  };
  std::mutex mutex_;
  std::vector<Free> free_;
};

// Activations of this backend: f32, row-major, no padding between rows.
struct HostStorage : TensorStorage {
  HostStorage(std::shared_ptr<BufferPool> pool, size_t bytes);
  ~HostStorage() override;
  float* data() const {
    return reinterpret_cast<float*>(bytes_);
  }

 private:
  std::shared_ptr<BufferPool> pool_;
  std::byte* bytes_;
  size_t capacity_;
};

struct Context {
  BackendOptions options;
  Isa isa;
  ThreadPool pool;
  std::shared_ptr<BufferPool> buffers = std::make_shared<BufferPool>();
  std::shared_ptr<ReadAhead> ahead;

  explicit Context(const BackendOptions& options);
  Tensor make(int64_t rows, int64_t cols);  // f32, uninitialized
};

float* data(const Tensor& tensor);

// Normalizes one row; weight and bias are f32 copies made by prepare_norm.
class CpuNorm : public Norm {
 public:
  CpuNorm(const NormWeights& weights, Isa isa);
  void apply(const float* x, float* y) const;  // y may be x

 private:
  const NormKernels& kernels_;
  NormKind kind_;
  float eps_;
  std::vector<float> weight_;  // offset already added; empty: ones
  std::vector<float> bias_;    // empty: zeros
  int64_t parts_;
};

}  // namespace mlxcel::cpu
