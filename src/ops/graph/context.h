// What the parts of the graph backend share: the MLX device and stream, the
// type activations are computed in, weights that are already on the device, and
// the caches to evaluate together with a result.
//
// Ops only add nodes to the graph. It runs when the head is reached or a tensor
// is read, once a step.
#pragma once

#include "core/tensor.h"
#include "ops/backend.h"

#include <mlx/mlx.h>

#include <map>
#include <memory>
#include <tuple>
#include <vector>

namespace mlxcel::graph {

namespace mx = mlx::core;

class GraphKvCache;

struct ArrayStorage : TensorStorage {
  explicit ArrayStorage(mx::array array) : value(std::move(array)) {}
  mx::array value;  // [rows, cols]
};

mx::Dtype mlx_dtype(
    DType dtype);  // throws CheckpointError for f64 and the like
const mx::array& value(const Tensor& tensor);
int int_of(int64_t size);  // throws ShapeError past MLX's 32-bit extents

// A weight on the device. Two handles on the same checkpoint tensor (a tied
// head and its embedding) share one.
using SharedArray = std::shared_ptr<const mx::array>;

// Copies checkpoint tensors to the device.
class Uploader {
 public:
  explicit Uploader(bool gpu) : gpu_(gpu) {}
  // Rows of all parts, stacked; same dtype and trailing shape. A single part
  // is shared with every other upload of the same data.
  SharedArray upload(const std::vector<const WeightTensor*>& parts);
  mx::array upload(const WeightTensor& tensor);

 private:
  struct Known {
    std::weak_ptr<const void> owner;  // the address is reused after it is gone
    std::weak_ptr<const mx::array> array;
  };
  using Key = std::tuple<const std::byte*, DType, Shape>;

  bool gpu_;
  std::map<Key, Known> known_;
};

class Context {
 public:
  explicit Context(const BackendOptions& options);

  // MLX keeps default streams by thread; every entry point calls this first.
  void enter();

  Tensor wrap(mx::array array) const;
  // The array in the type of activations.
  mx::array to_compute(const mx::array& array) const;
  mx::array scalar(float number) const;
  // x * factor + y, in f32; either part may be left out (factor 1, null y).
  mx::array scale_add(
      const mx::array& x, float factor, const mx::array* y) const;

  // Evaluates `arrays` and all caches.
  void eval(std::vector<mx::array> arrays, bool wait);

  bool gpu;
  bool cuda;  // the GPU takes CUDA kernels
  mx::Device device;
  // f32 on CPU devices, where MLX has no fast 16-bit products.
  mx::Dtype compute;
  DType compute_dtype;
  Uploader uploader;
  std::vector<GraphKvCache*> caches;

 private:
  mx::Stream stream_;
};

}  // namespace mlxcel::graph
