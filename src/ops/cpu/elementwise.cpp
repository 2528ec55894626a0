#include "ops/cpu/elementwise.h"

#include "ops/cpu/kernels/norm_kernels.h"

namespace mlxcel::cpu {

Tensor norm(Context& context, const Tensor& x, const Norm& norm) {
  Tensor y = context.make(x.rows(), x.cols());
  const auto& weights = static_cast<const CpuNorm&>(norm);
  const float* from = data(x);
  float* to = data(y);
  int64_t cols = x.cols();
  for_rows(context, x.rows(), cols, [&](int64_t i) {
    weights.apply(from + i * cols, to + i * cols);
  });
  return y;
}

Tensor add(Context& context, const Tensor& x, const Tensor& y, float scale) {
  Tensor sum = context.make(x.rows(), x.cols());
  const NormKernels& kernels = norm_kernels(context.isa);
  const float *a = data(x), *b = data(y);
  float* to = data(sum);
  int64_t cols = x.cols();
  for_rows(context, x.rows(), cols, [&](int64_t i) {
    kernels.add(a + i * cols, b + i * cols, scale, to + i * cols, cols);
  });
  return sum;
}

}  // namespace mlxcel::cpu
