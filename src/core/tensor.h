// Activations: a light handle on memory that a backend owns.
//
// The CPU backend keeps activations in f32 in host memory; the graph backend
// keeps an MLX array in the storage. Models pass tensors from op to op and
// never look inside.
#pragma once

#include "core/dtype.h"

#include <memory>
#include <utility>

namespace mlxcel {

// What a backend puts behind a tensor. Destroyed when the last handle goes.
struct TensorStorage {
  virtual ~TensorStorage() = default;
};

class Tensor {
 public:
  Tensor() = default;
  Tensor(
      DType dtype,
      int64_t rows,
      int64_t cols,
      std::shared_ptr<TensorStorage> storage)
      : dtype_(dtype), rows_(rows), cols_(cols), storage_(std::move(storage)) {}

  // Activations are matrices: one row a token of the step, one column a
  // feature.
  DType dtype() const {
    return dtype_;
  }
  int64_t rows() const {
    return rows_;
  }
  int64_t cols() const {
    return cols_;
  }
  explicit operator bool() const {
    return storage_ != nullptr;
  }
  TensorStorage* storage() const {
    return storage_.get();
  }
  const std::shared_ptr<TensorStorage>& shared_storage() const {
    return storage_;
  }

 private:
  DType dtype_ = DType::f32;
  int64_t rows_ = 0, cols_ = 0;
  std::shared_ptr<TensorStorage> storage_;
};

}  // namespace mlxcel
