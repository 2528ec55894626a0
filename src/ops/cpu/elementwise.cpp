#include "ops/cpu/elementwise.h"

#include "ops/cpu/kernels/matmul_kernels.h"
#include "ops/cpu/kernels/norm_kernels.h"

#include <algorithm>
#include <cmath>

namespace mlxcel::cpu {

Tensor norm(Context& context, const Tensor& x, const Norm& norm) {
  Tensor y = context.make(x.rows(), x.cols());
  const auto& weights = static_cast<const CpuNorm&>(norm);
  const float* from = data(x);
  float* to = data(y);
  int64_t size = norm.size(), runs = x.rows() * (x.cols() / size);
  for_rows(context, runs, size, [&](int64_t i) {
    weights.apply(from + i * size, to + i * size);
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

Tensor multiply(
    Context& context,
    const Tensor& x,
    const Tensor* y,
    const MultiplyOptions& options) {
  Tensor product = context.make(x.rows(), x.cols());
  const Kernels& kernels = kernels_for(context.isa);
  const NormKernels& scaling = norm_kernels(context.isa);
  const float* a = data(x);
  const float* b = y ? data(*y) + options.column : nullptr;
  float* to = data(product);
  int64_t cols = x.cols(), pitch = y ? y->cols() : 0;
  for_rows(context, x.rows(), cols, [&](int64_t i) {
    float* row = to + i * cols;
    kernels.activate(
        options.activation,
        a + i * cols,
        b ? b + i * pitch : nullptr,
        row,
        cols);
    if (options.scale != 1) {
      scaling.scale(row, row, 0, options.scale, nullptr, nullptr, cols);
    }
  });
  return product;
}

Tensor weighted_sum(
    Context& context,
    const Tensor& base,
    const std::vector<Tensor>& inputs,
    const Tensor& weights,
    int64_t first) {
  Tensor sum = context.make(base.rows(), base.cols());
  const NormKernels& kernels = norm_kernels(context.isa);
  float* to = data(sum);
  int64_t cols = base.cols();
  for_rows(context, base.rows(), cols, [&](int64_t i) {
    const float* own = data(weights) + i * weights.cols() + first;
    const float* from = data(base) + i * cols;
    float* row = to + i * cols;
    for (size_t k = 0; k < inputs.size(); ++k) {
      kernels.add(from, data(inputs[k]) + i * cols, own[k], row, cols);
      from = row;
    }
    if (inputs.empty()) {
      std::copy_n(from, cols, row);
    }
  });
  return sum;
}

Tensor match_size(Context& context, const Tensor& x, const Tensor& like) {
  Tensor y = context.make(x.rows(), x.cols());
  const NormKernels& kernels = norm_kernels(context.isa);
  float* to = data(y);
  int64_t cols = x.cols();
  for_rows(context, x.rows(), cols, [&](int64_t i) {
    const float* from = data(x) + i * cols;
    float wanted =
        kernels.sum_of_squares(data(like) + i * cols, 0, cols) / float(cols);
    float own = kernels.sum_of_squares(from, 0, cols) / float(cols);
    float factor = std::sqrt(wanted) / std::sqrt(std::max(own, 1e-5f));
    kernels.scale(from, to + i * cols, 0, factor, nullptr, nullptr, cols);
  });
  return y;
}

Tensor cut_below(
    Context& context, const Tensor& x, int64_t columns, float deviations) {
  Tensor y = context.make(x.rows(), columns);
  const NormKernels& kernels = norm_kernels(context.isa);
  const Kernels& activations = kernels_for(context.isa);
  float* to = data(y);
  for_rows(context, x.rows(), columns, [&](int64_t i) {
    const float* from = data(x) + i * x.cols();
    float* row = to + i * columns;
    float mean = kernels.sum(from, columns) / float(columns);
    float variance =
        kernels.sum_of_squares(from, mean, columns) / float(columns);
    float cut = mean + deviations * std::sqrt(variance);
    kernels.scale(from, row, cut, 1, nullptr, nullptr, columns);
    activations.activate(Activation::relu, row, nullptr, row, columns);
  });
  return y;
}

}  // namespace mlxcel::cpu
