#include "ops/cpu/kernels/norm_kernels.h"

#include <algorithm>
#include <cmath>

namespace mlxcel::cpu {

namespace {

// Independent partial sums: the compiler may not reorder a plain loop.
constexpr int kLanes = 8;

template <typename Term>
float lane_sum(int64_t n, Term term) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      lanes[lane] += term(i + lane);
    }
  }
  for (int lane = 0; i < n; ++i, ++lane) {
    lanes[lane] += term(i);
  }
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
         ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

float sum(const float* x, int64_t n) {
  return lane_sum(n, [x](int64_t i) { return x[i]; });
}

float sum_of_squares(const float* x, float mean, int64_t n) {
  return lane_sum(n, [x, mean](int64_t i) {
    float centered = x[i] - mean;
    return centered * centered;
  });
}

void scale(
    const float* x,
    float* y,
    float mean,
    float factor,
    const float* weight,
    const float* bias,
    int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    float value = (x[i] - mean) * factor;
    value = weight ? value * weight[i] : value;
    y[i] = bias ? value + bias[i] : value;
  }
}

void add(const float* x, const float* y, float factor, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    out[i] = x[i] + factor * y[i];
  }
}

void xielu(const float* x, const Xielu& numbers, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    float v = x[i];
    float curve =
        v > 0 ? numbers.alpha_p * v * v
              : numbers.alpha_n * (std::expm1(std::min(v, numbers.eps)) - v);
    out[i] = curve + numbers.beta * v;
  }
}

}  // namespace

const NormKernels kNormPortable = {sum, sum_of_squares, scale, add, xielu};

}  // namespace mlxcel::cpu
