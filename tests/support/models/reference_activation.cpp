#include "support/models/reference_activation.h"

#include <algorithm>
#include <cmath>

namespace mlxcel::testing::reference {

namespace {

double xielu(const Xielu& numbers, double x) {
  double curve = x > 0 ? double(numbers.alpha_p) * x * x
                       : double(numbers.alpha_n) *
                             (std::expm1(std::min(x, double(numbers.eps))) - x);
  return curve + double(numbers.beta) * x;
}

}  // namespace

double activate(Activation activation, double x) {
  switch (activation) {
    case Activation::none:
      return x;
    case Activation::silu:
      return x / (1 + std::exp(-x));
    case Activation::gelu:
      return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case Activation::gelu_tanh:
      return 0.5 * x *
             (1 +
              std::tanh(
                  std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
    case Activation::relu:
      return std::max(x, 0.0);
    case Activation::relu_squared:
      return std::pow(std::max(x, 0.0), 2);
    case Activation::tanh:
      return std::tanh(x);
    case Activation::xielu:
      break;  // xielu()
    case Activation::sigmoid:
      return 1 / (1 + std::exp(-x));
  }
  return 0;
}

double cap(double x, double limit) {
  return limit > 0 ? limit * std::tanh(x / limit) : x;
}

void apply_activation(Row& row, const MlpWeights& weights) {
  size_t width = weights.gated ? row.size() / 2 : row.size();
  if (weights.in_turn) {
    Row turns = row;
    for (size_t i = 0; i < width; ++i) {
      row[i] = turns[2 * i];
      row[i + width] = turns[2 * i + 1];
    }
  }
  double limit = double(weights.clamp.limit);
  for (size_t i = 0; i < width; ++i) {
    if (weights.activation == Activation::xielu) {
      row[i] = xielu(weights.xielu, row[i]);
      continue;
    }
    if (weights.gated && limit > 0) {
      double g = std::min(row[i], limit);
      double u = std::clamp(row[i + width], -limit, limit);
      row[i] = g / (1 + std::exp(-double(weights.clamp.alpha) * g)) * (u + 1);
      continue;
    }
    double gate =
        activate(weights.activation, double(weights.gate_scale) * row[i]);
    row[i] = weights.gated ? gate * row[i + width] : gate;
  }
  row.resize(width);
}

}  // namespace mlxcel::testing::reference
