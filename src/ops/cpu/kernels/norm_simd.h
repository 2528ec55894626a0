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

// e^x - 1 for x <= 0: x = n ln 2 + r, |r| <= ln 2 / 2, and the series of
// e^r - 1 to r^7 (below 2^-24 of r), so that small x lose no digits.
inline Vector::F expm1_below_zero(Vector::F x) {
  constexpr float kLog2e = 1.44269504f;
  x = Vector::max(x, Vector::set(-87));
  Vector::F n = Vector::round(Vector::mul(x, Vector::set(kLog2e)));
  // ln 2 in two parts, the first exact in products with n
  Vector::F r = Vector::fma(n, Vector::set(-0.693359375f), x);
  r = Vector::fma(n, Vector::set(2.12194440e-4f), r);
  Vector::F p = Vector::set(1 / 5040.0f);
  for (float factor :
       {1 / 720.0f, 1 / 120.0f, 1 / 24.0f, 1 / 6.0f, 1 / 2.0f, 1.0f}) {
    p = Vector::fma(p, r, Vector::set(factor));
  }
  // 2^n (e^r - 1) + (2^n - 1)
  Vector::F power = Vector::times_power_of_2(Vector::set(1), n);
  return Vector::fma(
      Vector::mul(p, r), power, Vector::sub(power, Vector::set(1)));
}

inline Vector::F xielu_of(Vector::F x, const Xielu& numbers) {
  Vector::F zero = Vector::zero();
  Vector::F above = Vector::max(x, zero);
  Vector::F below = Vector::sub(x, above);
  // min(x, eps) as -max(-x, -eps)
  Vector::F bounded = Vector::sub(
      zero, Vector::max(Vector::sub(zero, x), Vector::set(-numbers.eps)));
  Vector::F negative = Vector::mul(
      Vector::set(numbers.alpha_n),
      Vector::sub(expm1_below_zero(bounded), below));
  Vector::F positive =
      Vector::mul(Vector::set(numbers.alpha_p), Vector::mul(above, above));
  Vector::F line = Vector::mul(Vector::set(numbers.beta), x);
  return Vector::add(Vector::where_positive(x, positive, negative), line);
}

void xielu(const float* x, const Xielu& numbers, float* out, int64_t n) {
  int64_t i = 0;
  for (; i + Vector::kWidth <= n; i += Vector::kWidth) {
    Vector::store(out + i, xielu_of(Vector::load(x + i), numbers));
  }
  if (i < n) {
    float rest[Vector::kWidth] = {};
    for (int64_t j = i; j < n; ++j) {
      rest[j - i] = x[j];
    }
    Vector::store(rest, xielu_of(Vector::load(rest), numbers));
    for (int64_t j = i; j < n; ++j) {
      out[j] = rest[j - i];
    }
  }
}

}  // namespace
}  // namespace mlxcel::cpu
