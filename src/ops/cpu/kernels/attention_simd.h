// The attention kernels over a Vector; included after one of vector_*.h.
#pragma once

#include "ops/cpu/kernels/attention_kernels.h"
#include "ops/cpu/kernels/attention_turn.h"
#include "ops/kv_cache.h"

namespace mlxcel::cpu {
namespace {

constexpr float kLog2e = 1.44269504f;
constexpr float kMaxF16 = 65504.0f;

// Rows of a tile: its sums, the vectors of B and a factor fill the registers.
constexpr int kTileRows = 6;
constexpr int kPairTileRows = 3;  // two sums a vector of columns

// Calls body.operator()<R>() for R = rows, 1 <= rows <= kMax.
template <int kMax, typename Body>
inline void with_rows(int rows, Body body) {
  if constexpr (kMax > 1) {
    if (rows < kMax) {
      with_rows<kMax - 1>(rows, body);
      return;
    }
  }
  body.template operator()<kMax>();
}

// Runs tile.operator()<rows, vectors>(first row, first column) over [m, n].
template <int kRows, typename Tile>
inline void for_tiles(int m, int n, Tile tile) {
  for (int i = 0; i < m;) {
    // Rows spread evenly, so that no tile is left with a single row.
    int tiles_left = (m - i + kRows - 1) / kRows;
    int rows = (m - i + tiles_left - 1) / tiles_left;
    with_rows<kRows>(rows, [&]<int kR>() {
      constexpr int kV = Vector::kTileVectors;
      int j = 0;
      for (; j + kV * Vector::kWidth <= n; j += kV * Vector::kWidth) {
        tile.template operator()<kR, kV>(i, j);
      }
      if constexpr (kV > 2) {
        if (j + 2 * Vector::kWidth <= n) {
          tile.template operator()<kR, 2>(i, j);
          j += 2 * Vector::kWidth;
        }
      }
      if (j < n) {
        tile.template operator()<kR, 1>(i, j);
      }
    });
    i += rows;
  }
}

inline void store_sum(float* c, Vector::F sum, const float* factor) {
  if (factor) {
    sum = Vector::fma(Vector::load(c), Vector::set(*factor), sum);
  }
  Vector::store(c, sum);
}

template <int kR, int kV>
inline void tile_f32(
    const float* a,
    int lda,
    const float* b,
    int ldb,
    int k,
    float* c,
    int ldc,
    const float* factors) {
  Vector::F sums[kR][kV];
  for (auto& row : sums) {
    for (auto& sum : row) {
      sum = Vector::zero();
    }
  }
  for (int p = 0; p < k; ++p) {
    Vector::F x[kV];
#pragma GCC unroll 4
    for (int v = 0; v < kV; ++v) {
      x[v] = Vector::load(b + int64_t(p) * ldb + v * Vector::kWidth);
    }
#pragma GCC unroll 6
    for (int r = 0; r < kR; ++r) {
      Vector::F factor = Vector::set(a[r * lda + p]);
#pragma GCC unroll 4
      for (int v = 0; v < kV; ++v) {
        sums[r][v] = Vector::fma(factor, x[v], sums[r][v]);
      }
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kV; ++v) {
      store_sum(
          c + r * ldc + v * Vector::kWidth,
          sums[r][v],
          factors ? factors + r : nullptr);
    }
  }
}

template <bool kBf16, int kR, int kV>
inline void tile_pairs(
    const float* a,
    int lda,
    const uint16_t* b,
    int ldb,
    int k,
    float* c,
    int ldc,
    const float* factors) {
  Vector::F sums[kR][2 * kV];
  for (auto& row : sums) {
    for (auto& sum : row) {
      sum = Vector::zero();
    }
  }
  for (int p = 0; p < k; p += 2) {
    Vector::F f0[kR], f1[kR];
#pragma GCC unroll 3
    for (int r = 0; r < kR; ++r) {
      Vector::set_pair<kBf16>(a + r * lda + p, f0[r], f1[r]);
    }
#pragma GCC unroll 4
    for (int v = 0; v < kV; ++v) {
      Vector::F x0, x1;
      Vector::load_pairs<kBf16>(
          b + int64_t(p) * ldb + 2 * v * Vector::kWidth, x0, x1);
#pragma GCC unroll 3
      for (int r = 0; r < kR; ++r) {
        sums[r][2 * v] = Vector::fma(f0[r], x0, sums[r][2 * v]);
        sums[r][2 * v + 1] = Vector::fma(f1[r], x1, sums[r][2 * v + 1]);
      }
    }
  }
#pragma GCC unroll 3
  for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kV; ++v) {
      store_sum(
          c + r * ldc + v * Vector::kWidth,
          Vector::sum_pairs<kBf16>(sums[r][2 * v], sums[r][2 * v + 1]),
          factors ? factors + r : nullptr);
    }
  }
}

template <bool kBf16>
void product_pairs(
    const float* a,
    int lda,
    const uint16_t* b,
    int ldb,
    int n,
    int k,
    int m,
    float* c,
    int ldc,
    const float* factors) {
  for_tiles<kPairTileRows>(m, n, [&]<int kR, int kV>(int i, int j) {
    tile_pairs<kBf16, kR, kV>(
        a + i * lda,
        lda,
        b + 2 * j,
        ldb,
        k,
        c + i * ldc + j,
        ldc,
        factors ? factors + i : nullptr);
  });
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
  if (b_type == DType::f16) {
    product_pairs<false>(
        a, lda, static_cast<const uint16_t*>(b), ldb, n, k, m, c, ldc, factors);
    return;
  }
  if (b_type == DType::bf16) {
    product_pairs<true>(
        a, lda, static_cast<const uint16_t*>(b), ldb, n, k, m, c, ldc, factors);
    return;
  }
  const float* rows = static_cast<const float*>(b);
  for_tiles<kTileRows>(m, n, [&]<int kR, int kV>(int i, int j) {
    tile_f32<kR, kV>(
        a + i * lda,
        lda,
        rows + j,
        ldb,
        k,
        c + i * ldc + j,
        ldc,
        factors ? factors + i : nullptr);
  });
}

template <bool kBf16>
void widen_pairs(const uint16_t* b, int n, int k, float* out) {
  for (int p = 0; p < k; p += 2) {
    for (int j = 0; j < n; j += Vector::kWidth) {
      Vector::F row0, row1;
      Vector::load_rows<kBf16>(b + int64_t(p) * n + 2 * j, row0, row1);
      Vector::store(out + int64_t(p) * n + j, row0);
      Vector::store(out + int64_t(p + 1) * n + j, row1);
    }
  }
}

void widen(const void* b, DType b_type, int n, int k, float* out) {
  const auto* pairs = static_cast<const uint16_t*>(b);
  if (b_type == DType::bf16) {
    widen_pairs<true>(pairs, n, k, out);
  } else {
    widen_pairs<false>(pairs, n, k, out);
  }
}

// The last lanes go through a copy, so that nothing past `count` is touched.
template <typename Store>
inline void narrow_with(
    const float* from, float factor, uint16_t* to, int64_t count, Store store) {
  Vector::F factors = Vector::set(factor);
  int64_t i = 0;
  for (; i + Vector::kWidth <= count; i += Vector::kWidth) {
    store(to + i, Vector::mul(Vector::load(from + i), factors));
  }
  if (i < count) {
    float rest[Vector::kWidth] = {};
    uint16_t narrowed[Vector::kWidth];
    __builtin_memcpy(rest, from + i, size_t(count - i) * sizeof(float));
    store(narrowed, Vector::mul(Vector::load(rest), factors));
    __builtin_memcpy(to + i, narrowed, size_t(count - i) * sizeof(uint16_t));
  }
}

void narrow(
    const float* from,
    float factor,
    DType to_type,
    uint16_t* to,
    int64_t count) {
  if (to_type == DType::bf16) {
    narrow_with(from, factor, to, count, [](uint16_t* out, Vector::F x) {
      Vector::store_bf16(out, x);
    });
    return;
  }
  narrow_with(from, factor, to, count, [](uint16_t* out, Vector::F x) {
    Vector::store_f16(out, Vector::clamp(x, Vector::set(kMaxF16)));
  });
}

void f16_to_bf16(const uint16_t* from, uint16_t* to, int64_t count) {
  for (int64_t i = 0; i < count; i += 2 * Vector::kWidth) {
    Vector::store_bf16(
        to + i,
        Vector::load_f16(from + i),
        Vector::load_f16(from + i + Vector::kWidth));
  }
}

// 2^x for x <= 0, and 0 below -200: 2^f by a polynomial of degree 5 fitted to
// the relative error on [-1/2, 1/2] (7.7e-8; 2.2e-7 as evaluated in f32).
inline Vector::F exp2(Vector::F x) {
  x = Vector::max(x, Vector::set(-200));
  Vector::F n = Vector::round(x);
  Vector::F f = Vector::sub(x, n);
  Vector::F p = Vector::set(0.00132669704f);
  p = Vector::fma(p, f, Vector::set(0.00967545975f));
  p = Vector::fma(p, f, Vector::set(0.0555074262f));
  p = Vector::fma(p, f, Vector::set(0.240221218f));
  p = Vector::fma(p, f, Vector::set(0.693146949f));
  p = Vector::fma(p, f, Vector::set(1.00000007f));
  return Vector::times_power_of_2(p, n);
}

// Near 0 the odd series that Cephes uses for tanhf; elsewhere by exp2.
inline Vector::F tanh(Vector::F x) {
  Vector::F square = Vector::mul(x, x);
  Vector::F p = Vector::set(-5.70498872745e-3f);
  p = Vector::fma(p, square, Vector::set(2.06390887954e-2f));
  p = Vector::fma(p, square, Vector::set(-5.37397155531e-2f));
  p = Vector::fma(p, square, Vector::set(1.33314422036e-1f));
  p = Vector::fma(p, square, Vector::set(-3.33332819422e-1f));
  Vector::F near = Vector::fma(Vector::mul(p, square), x, x);
  // tanh |x| = (1 - e) / (1 + e), e = 2^(-2 |x| log2(e))
  Vector::F one = Vector::set(1);
  Vector::F e = exp2(Vector::mul(Vector::abs(x), Vector::set(-2 * kLog2e)));
  Vector::F far = Vector::div(Vector::sub(one, e), Vector::add(one, e));
  far = Vector::copy_sign(far, x);
  return Vector::select_below(x, Vector::set(0.625f), near, far);
}

constexpr int kBlockVectors = kKvBlockSize / Vector::kWidth;

// Scores of a row in place of those that do not count, and their maximum.
// kMasked: only the visible positions count.
template <bool kMasked>
inline float mask_row(float* row, VisibleRange visible, float cap) {
  Vector::F s[kBlockVectors];
#pragma GCC unroll 8
  for (int v = 0; v < kBlockVectors; ++v) {
    s[v] = Vector::load(row + v * Vector::kWidth);
  }
  if (cap > 0) {
    for (int v = 0; v < kBlockVectors; ++v) {
      s[v] = Vector::mul(
          tanh(Vector::mul(s[v], Vector::set(1 / cap))),
          Vector::set(cap * kLog2e));
      Vector::store(row + v * Vector::kWidth, s[v]);
    }
  }
  if constexpr (kMasked) {
    Vector::F lowest = Vector::set(-__builtin_inff());
#pragma GCC unroll 8
    for (int v = 0; v < kBlockVectors; ++v) {
      s[v] = Vector::keep(
          Vector::lanes(v * Vector::kWidth, visible.begin, visible.end),
          s[v],
          lowest);
      Vector::store(row + v * Vector::kWidth, s[v]);
    }
  }
  Vector::F highest = s[0];
#pragma GCC unroll 8
  for (int v = 1; v < kBlockVectors; ++v) {
    highest = Vector::max(highest, s[v]);
  }
  return Vector::reduce_max(highest);
}

// Rows that are handled together: one vector holds their factors.
constexpr int kSoftmaxRows = Vector::kWidth;

void softmax_rows(const SoftmaxTile& tile, int first, int count) {
  float shifts[kSoftmaxRows] = {}, changes[kSoftmaxRows] = {};
  for (int r = 0; r < count; ++r) {
    int i = first + r;
    float* row = tile.scores + i * kKvBlockSize;
    VisibleRange visible = tile.visible[i];
    SoftmaxState& state = tile.states[i];
    if (visible.begin >= visible.end) {  // outside the row's window, or past it
      for (int v = 0; v < kBlockVectors; ++v) {
        Vector::store(row + v * Vector::kWidth, Vector::set(-__builtin_inff()));
      }
      continue;
    }
    bool whole = visible.begin == 0 && visible.end == kKvBlockSize;
    float max = whole ? mask_row<false>(row, visible, tile.cap)
                      : mask_row<true>(row, visible, tile.cap);
    max = max > state.max ? max : state.max;
    changes[r] = state.max - max;
    shifts[r] = max;
    state.max = max;
  }
  Vector::F change = Vector::load(changes);
  float factors[kSoftmaxRows];
  // Exactly 1 for rows whose maximum stays: a block without a visible position
  // must not change a bit.
  Vector::store(
      factors,
      Vector::select_below(
          change, Vector::set(__FLT_MIN__), Vector::set(1), exp2(change)));
  for (int r = 0; r < count; ++r) {
    int i = first + r;
    float* row = tile.scores + i * kKvBlockSize;
    Vector::F shift = Vector::set(shifts[r]);
    Vector::F sum = Vector::zero();
    Vector::F p[kBlockVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kBlockVectors; ++v) {
      p[v] = exp2(Vector::sub(Vector::load(row + v * Vector::kWidth), shift));
      sum = Vector::add(sum, p[v]);
    }
    tile.factors[i] = factors[r];
    tile.states[i].sum =
        tile.states[i].sum * factors[r] + Vector::reduce_add(sum);
    if (tile.weights_bf16) {
      uint16_t* out = tile.weights_bf16 + i * kKvBlockSize;
#pragma GCC unroll 8
      for (int v = 0; v < kBlockVectors; v += 2) {
        Vector::store_bf16(out + v * Vector::kWidth, p[v], p[v + 1]);
      }
    } else {
#pragma GCC unroll 8
      for (int v = 0; v < kBlockVectors; ++v) {
        Vector::store(row + v * Vector::kWidth, p[v]);
      }
    }
  }
}

void softmax(const SoftmaxTile& tile) {
  for (int first = 0; first < tile.m; first += kSoftmaxRows) {
    int rows = tile.m - first;
    softmax_rows(tile, first, rows < kSoftmaxRows ? rows : kSoftmaxRows);
  }
}

void scale(float* y, const float* x, float factor, int64_t n) {
  int64_t i = 0;
  for (; i + Vector::kWidth <= n; i += Vector::kWidth) {
    Vector::store(y + i, Vector::mul(Vector::load(x + i), Vector::set(factor)));
  }
  for (; i < n; ++i) {
    y[i] = x[i] * factor;
  }
}

void add_scaled(float* y, const float* x, float factor, int64_t n) {
  int64_t i = 0;
  for (; i + Vector::kWidth <= n; i += Vector::kWidth) {
    Vector::store(
        y + i,
        Vector::fma(
            Vector::load(x + i), Vector::set(factor), Vector::load(y + i)));
  }
  for (; i < n; ++i) {
    y[i] = __builtin_fmaf(x[i], factor, y[i]);
  }
}

// Two powers of numbers that are not positive, so that none overflows:
// e^min(x, 0) / (1 + e^-|x|).
inline Vector::F sigmoid(Vector::F x) {
  Vector::F size = Vector::abs(x);
  Vector::F below = Vector::sub(x, size);  // 2 min(x, 0)
  return Vector::div(
      exp2(Vector::mul(below, Vector::set(0.5f * kLog2e))),
      Vector::add(
          Vector::set(1), exp2(Vector::mul(size, Vector::set(-kLog2e)))));
}

void multiply_sigmoid(float* y, const float* x, int64_t n) {
  int64_t i = 0;
  for (; i + Vector::kWidth <= n; i += Vector::kWidth) {
    Vector::store(
        y + i, Vector::mul(Vector::load(y + i), sigmoid(Vector::load(x + i))));
  }
  if (i < n) {
    float gate[Vector::kWidth] = {};
    for (int64_t j = i; j < n; ++j) {
      gate[j - i] = x[j];
    }
    Vector::store(gate, sigmoid(Vector::load(gate)));
    for (int64_t j = i; j < n; ++j) {
      y[j] *= gate[j - i];
    }
  }
}

void rotate(
    float* x,
    const float* cosine,
    const float* sine,
    int half,
    bool interleaved) {
  int i = 0;
  if (interleaved) {
    constexpr int kPairs = Vector::kWidth / 2;
    for (; i + kPairs <= half; i += kPairs) {
      Vector::store(
          x + 2 * i,
          Vector::rotate_pairs(Vector::load(x + 2 * i), cosine + i, sine + i));
    }
    for (; i < half; ++i) {
      float a = x[2 * i], b = x[2 * i + 1];
      x[2 * i] = __builtin_fmaf(a, cosine[i], -(b * sine[i]));
      x[2 * i + 1] = __builtin_fmaf(b, cosine[i], a * sine[i]);
    }
    return;
  }
  for (; i + Vector::kWidth <= half; i += Vector::kWidth) {
    Vector::F a = Vector::load(x + i), b = Vector::load(x + half + i);
    Vector::F c = Vector::load(cosine + i), s = Vector::load(sine + i);
    Vector::store(x + i, Vector::sub(Vector::mul(a, c), Vector::mul(b, s)));
    Vector::store(
        x + half + i, Vector::add(Vector::mul(b, c), Vector::mul(a, s)));
  }
  for (; i < half; ++i) {
    float a = x[i], b = x[i + half];
    x[i] = a * cosine[i] - b * sine[i];
    x[i + half] = b * cosine[i] + a * sine[i];
  }
}

}  // namespace
}  // namespace mlxcel::cpu
