#include "core/half.h"
#include "ops/cpu/kernels/attention_kernels.h"
#include "ops/cpu/kernels/attention_turn.h"
#include "ops/kv_cache.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace mlxcel::cpu {

namespace {

constexpr float kLog2e = 1.44269504f;
constexpr float kMaxF16 = 65504.0f;
// Columns converted at a time; a head's values have up to a few hundred.
constexpr int kColumns = 64;

inline float widen_one(uint16_t bits, DType type) {
  return type == DType::bf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

void add_row(float* c, float a, const float* b, int n) {
  for (int j = 0; j < n; ++j) {
    c[j] += a * b[j];
  }
}

void product(
    const float* a,
    int lda,
    const void* b,
    DType b_type,
    int ldb,
    int n,
    int k,
    int m,
    float* c,
    int ldc,
    const float* factors) {
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      c[i * ldc + j] = factors ? factors[i] * c[i * ldc + j] : 0.0f;
    }
  }
  if (b_type == DType::f32) {
    const float* rows = static_cast<const float*>(b);
    for (int i = 0; i < m; ++i) {
      for (int p = 0; p < k; ++p) {
        add_row(c + i * ldc, a[i * lda + p], rows + int64_t(p) * ldb, n);
      }
    }
    return;
  }
  const uint16_t* pairs = static_cast<const uint16_t*>(b);
  float even[kColumns], odd[kColumns];
  for (int first = 0; first < n; first += kColumns) {
    int width = std::min(kColumns, n - first);
    for (int p = 0; p < k; p += 2) {
      const uint16_t* row = pairs + int64_t(p) * ldb + 2 * first;
      for (int j = 0; j < width; ++j) {
        even[j] = widen_one(row[2 * j], b_type);
        odd[j] = widen_one(row[2 * j + 1], b_type);
      }
      for (int i = 0; i < m; ++i) {
        add_row(c + i * ldc + first, a[i * lda + p], even, width);
        add_row(c + i * ldc + first, a[i * lda + p + 1], odd, width);
      }
    }
  }
}

void widen(const void* b, DType b_type, int n, int k, float* out) {
  const uint16_t* pairs = static_cast<const uint16_t*>(b);
  for (int p = 0; p < k; p += 2) {
    for (int j = 0; j < n; ++j) {
      out[p * n + j] = widen_one(pairs[p * n + 2 * j], b_type);
      out[(p + 1) * n + j] = widen_one(pairs[p * n + 2 * j + 1], b_type);
    }
  }
}

void f16_to_bf16(const uint16_t* from, uint16_t* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] = f32_to_bf16(f16_to_f32(from[i]));
  }
}

void narrow(
    const float* from,
    float factor,
    DType to_type,
    uint16_t* to,
    int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    float x = from[i] * factor;
    to[i] = to_type == DType::bf16
                ? f32_to_bf16(x)
                : f32_to_f16(std::clamp(x, -kMaxF16, kMaxF16));
  }
}

// One row of 64 scores.
float softmax_row(
    float* s, VisibleRange visible, float cap, SoftmaxState& state) {
  if (visible.begin >= visible.end) {
    std::fill_n(s, kKvBlockSize, 0.0f);
    return 1;
  }
  float max = state.max;
  for (int j = visible.begin; j < visible.end; ++j) {
    if (cap > 0) {
      s[j] = cap * std::tanh(s[j] / cap) * kLog2e;
    }
    max = std::max(max, s[j]);
  }
  float sum = 0;
  for (int j = 0; j < kKvBlockSize; ++j) {
    bool seen = j >= visible.begin && j < visible.end;
    s[j] = seen ? std::exp2(s[j] - max) : 0.0f;
    sum += s[j];
  }
  float factor = std::exp2(state.max - max);
  state.sum = state.sum * factor + sum;
  state.max = max;
  return factor;
}

void softmax(const SoftmaxTile& tile) {
  for (int i = 0; i < tile.m; ++i) {
    float* row = tile.scores + i * kKvBlockSize;
    tile.factors[i] =
        softmax_row(row, tile.visible[i], tile.cap, tile.states[i]);
    if (tile.weights_bf16) {
      narrow(
          row,
          1,
          DType::bf16,
          tile.weights_bf16 + i * kKvBlockSize,
          kKvBlockSize);
    }
  }
}

void scale(float* y, const float* x, float factor, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    y[i] = x[i] * factor;
  }
}

void add_scaled(float* y, const float* x, float factor, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    y[i] += factor * x[i];
  }
}

void multiply_sigmoid(float* y, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    y[i] /= 1 + std::exp(-x[i]);
  }
}

void rotate(
    float* x,
    const float* cosine,
    const float* sine,
    int half,
    bool interleaved) {
  int step = interleaved ? 2 : 1;
  int distance = interleaved ? 1 : half;
  for (int i = 0; i < half; ++i) {
    float a = x[step * i], b = x[step * i + distance];
    x[step * i] = a * cosine[i] - b * sine[i];
    x[step * i + distance] = b * cosine[i] + a * sine[i];
  }
}

}  // namespace

const AttentionKernels kAttentionPortable = {
    .product = product,
    .product_bf16 = nullptr,
    .widen = widen,
    .f16_to_bf16 = f16_to_bf16,
    .narrow = narrow,
    .turn_f32 = turn_f32,
    .turn_pairs = turn_pairs,
    .softmax = softmax,
    .scale = scale,
    .add_scaled = add_scaled,
    .multiply_sigmoid = multiply_sigmoid,
    .rotate = rotate,
};

}  // namespace mlxcel::cpu
