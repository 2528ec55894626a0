#include "core/error.h"
#include "ops/cpu/context.h"
#include "ops/cpu/kernels/norm_kernels.h"

#include <cmath>

namespace mlxcel::cpu {

namespace {

std::vector<float> copy_as_f32(
    const std::optional<WeightTensor>& tensor, int64_t size, const char* role) {
  if (!tensor) {
    return {};
  }
  if (element_count(tensor->shape) != size) {
    throw ShapeError(
        cat("norm: the ", role, " does not fit"),
        cat(role, " ", to_string(tensor->shape), ", features [", size, "]"),
        "check hidden_size in config.json against the norm weights");
  }
  std::vector<float> values(static_cast<size_t>(size));
  read_as_f32(*tensor, values.data());
  return values;
}

}  // namespace

CpuNorm::CpuNorm(const NormWeights& weights, Isa isa)
    : Norm(weights.size),
      kernels_(norm_kernels(isa)),
      kind_(weights.kind),
      eps_(weights.eps),
      weight_(copy_as_f32(weights.weight, weights.size, "weight")),
      bias_(copy_as_f32(weights.bias, weights.size, "bias")),
      parts_(weights.parts) {
  for (float& value : weight_) {
    value += weights.weight_offset;
  }
}

void CpuNorm::apply(const float* x, float* y) const {
  int64_t n = size() / parts_;
  for (int64_t first = 0; first < size(); first += n) {
    const float* from = x + first;
    float mean =
        kind_ == NormKind::layer ? kernels_.sum(from, n) / float(n) : 0.0f;
    float square = kernels_.sum_of_squares(from, mean, n) / float(n);
    float factor = 1.0f / std::sqrt(square + eps_);
    kernels_.scale(
        from,
        y + first,
        mean,
        factor,
        weight_.empty() ? nullptr : weight_.data() + first,
        bias_.empty() ? nullptr : bias_.data() + first,
        n);
  }
}

}  // namespace mlxcel::cpu
