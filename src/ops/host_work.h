// What a backend that computes on the host offers beside its ops, to code that
// works on results between two steps. Others are asked through Backend::read.
#pragma once

#include "core/tensor.h"
#include "core/thread_pool.h"

namespace mlxcel {

class HostWork {
 public:
  virtual ~HostWork() = default;

  // The values [rows, cols] of a tensor that this backend made, where they
  // stand. Who holds the only handle may change them.
  virtual float* values(const Tensor& tensor) = 0;
  // The threads of the ops, idle between two of them.
  virtual ThreadPool& pool() = 0;
};

}  // namespace mlxcel
