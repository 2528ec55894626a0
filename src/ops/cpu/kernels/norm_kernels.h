// Row kernels of the norms, of element-wise sums and of xIELU, one set an
// instruction set. Each set adds in an order of its own that depends on the
// size alone.
#pragma once

#include "core/cpu_features.h"
#include "ops/backend.h"

#include <cstdint>

namespace mlxcel::cpu {

struct NormKernels {
  float (*sum)(const float* x, int64_t n);
  float (*sum_of_squares)(const float* x, float mean, int64_t n);  // (x-mean)^2
  // y = (x - mean) * factor * weight + bias; weight and bias may be null.
  void (*scale)(
      const float* x,
      float* y,
      float mean,
      float factor,
      const float* weight,
      const float* bias,
      int64_t n);
  void (*add)(
      const float* x, const float* y, float scale, float* out, int64_t n);
  void (*xielu)(const float* x, const Xielu& numbers, float* out, int64_t n);
};

const NormKernels& norm_kernels(Isa isa);

extern const NormKernels kNormPortable, kNormAvx2, kNormAvx512;

}  // namespace mlxcel::cpu
