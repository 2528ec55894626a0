// The norm kernels over a Vector; included after one of vector_*.h.
#pragma once

#include "ops/cpu/kernels/norm_kernels.h"

namespace mlxcel::cpu {
namespace {

// Four partial vectors hide the latency of the additions.
constexpr int kPartialSums = 4;

template <typename Term, typename ScalarTerm>
float vector_sum(int64_t n, Term term, ScalarTerm scalar_term) {
  constexpr int kStep = kPartialSums * Vector::kWidth;
  Vector::F sums[kPartialSums];
  for (auto& sum : sums) {
    sum = Vector::zero();
  }
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    for (int part = 0; part < kPartialSums; ++part) {
      sums[part] = term(i + part * Vector::kWidth, sums[part]);
    }
  }
  for (; i + Vector::kWidth <= n; i += Vector::kWidth) {
    sums[0] = term(i, sums[0]);
  }
  float total = Vector::reduce_add(Vector::add(
      Vector::add(sums[0], sums[1]), Vector::add(sums[2], sums[3])));
  for (; i < n; ++i) {
    total += scalar_term(i);
  }
  return total;
}

float sum(const float* x, int64_t n) {
  return vector_sum(
      n,
      [x](int64_t i, Vector::F sum) {
        return Vector::add(sum, Vector::load(x + i));
      },
      [x](int64_t i) { return x[i]; });
}

float sum_of_squares(const float* x, float mean, int64_t n) {
  Vector::F center = Vector::set(mean);
  return vector_sum(
      n,
      [x, center](int64_t i, Vector::F sum) {
        Vector::F centered = Vector::sub(Vector::load(x + i), center);
        return Vector::fma(centered, centered, sum);
      },
      [x, mean](int64_t i) { return (x[i] - mean) * (x[i] - mean); });
}

void scale(
    const float* x,
    float* y,
    float mean,
    float factor,
    const float* weight,
    const float* bias,
    int64_t n) {
  Vector::F center = Vector::set(mean), factors = Vector::set(factor);
  int64_t i = 0;
  for (; i + Vector::kWidth <= n; i += Vector::kWidth) {
    Vector::F value =
        Vector::mul(Vector::sub(Vector::load(x + i), center), factors);
    if (weight) {
      value = Vector::mul(value, Vector::load(weight + i));
    }
    if (bias) {
      value = Vector::add(value, Vector::load(bias + i));
    }
    Vector::store(y + i, value);
  }
  for (; i < n; ++i) {
    float value = (x[i] - mean) * factor;
    value = weight ? value * weight[i] : value;
    y[i] = bias ? value + bias[i] : value;
  }
}

void add(const float* x, const float* y, float factor, float* out, int64_t n) {
  Vector::F factors = Vector::set(factor);
  int64_t i = 0;
  for (; i + Vector::kWidth <= n; i += Vector::kWidth) {
    Vector::F product = Vector::mul(factors, Vector::load(y + i));
    Vector::store(out + i, Vector::add(Vector::load(x + i), product));
  }
  for (; i < n; ++i) {
    out[i] = x[i] + factor * y[i];
  }
}

}  // namespace
}  // namespace mlxcel::cpu
