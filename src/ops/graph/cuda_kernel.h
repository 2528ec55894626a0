// CUDA kernels of our own, whose text MLX compiles on the device it runs on.
#pragma once

#include "ops/graph/context.h"

#include <array>
#include <mutex>
#include <string>

namespace mlxcel::graph {

// A kernel with one output. MLX puts a kernel's text together anew in every
// call, which took the host more time than encoding it; calls that differ in
// their arrays alone share one operation instead.
class CudaKernel {
 public:
  // `inputs`: the names of its arrays; the output is `y`. `numbers`: the names
  // of its compile-time integers. `T` is the type of the first input.
  CudaKernel(
      const std::string& name,
      const std::vector<std::string>& inputs,
      std::vector<std::string> numbers,
      const std::string& source,
      const std::string& header);

  struct Launch {
    std::array<int, 3> blocks;
    int threads;  // of a block
  };
  mx::array operator()(
      std::vector<mx::array> inputs,
      const std::vector<int>& numbers,
      const Launch& launch,
      mx::Shape shape,
      mx::Dtype type) const;

 private:
  std::vector<std::string> numbers_;
  mx::fast::CustomKernelFunction make_;
  mutable std::mutex mutex_;
  // By stream, types, launch and numbers.
  mutable std::map<std::vector<int>, std::shared_ptr<mx::Primitive>> made_;
};

}  // namespace mlxcel::graph
