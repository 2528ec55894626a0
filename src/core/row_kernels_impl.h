// The bodies of RowKernels, compiled once for each instruction set. Plain loops
// that the compiler turns into vector code; only the f16 conversions need
// intrinsics. Included by the row_kernels*.cpp files alone.
#pragma once

#include "core/half.h"
#include "core/row_kernels.h"

#include <bit>
#include <cstring>

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace mlxcel {
namespace {

#if defined(__AVX512F__)
constexpr int64_t kLanes = 16;
#elif defined(__AVX2__)
constexpr int64_t kLanes = 8;
#else
constexpr int64_t kLanes = 4;
#endif
typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float))));

// Rows that share one pass over the low-rank matrix, and vectors of each: the
// sums stay in registers.
constexpr int64_t kRows = 4;
constexpr int64_t kVectors = 2;

void bf16_to_f32_rows(const void* source, int64_t n, float* out) {
  const char* bytes = static_cast<const char*>(source);
  for (int64_t i = 0; i < n; ++i) {
    uint16_t half;
    std::memcpy(&half, bytes + 2 * i, 2);
    uint32_t bits = uint32_t(half) << 16;
    std::memcpy(out + i, &bits, 4);
  }
}

void f32_to_bf16_rows(const float* source, int64_t n, void* out) {
  char* bytes = static_cast<char*>(out);
  for (int64_t i = 0; i < n; ++i) {
    uint32_t bits;
    std::memcpy(&bits, source + i, 4);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    uint32_t quiet = (bits >> 16) | 0x40;
    bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    uint16_t half = uint16_t(nan ? quiet : rounded);
    std::memcpy(bytes + 2 * i, &half, 2);
  }
}

void f16_to_f32_rows(const void* source, int64_t n, float* out) {
  const char* bytes = static_cast<const char*>(source);
  int64_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8) {
    __m128i half =
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + 2 * i));
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(half));
  }
#endif
  for (; i < n; ++i) {
    out[i] = f16_to_f32(load_unaligned<uint16_t>(bytes + 2 * i));
  }
}

void f32_to_f16_rows(const float* source, int64_t n, void* out) {
  char* bytes = static_cast<char*>(out);
  int64_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8) {
    __m128i half =
        _mm256_cvtps_ph(_mm256_loadu_ps(source + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes + 2 * i), half);
  }
#endif
  for (; i < n; ++i) {
    uint16_t half = f32_to_f16(source[i]);
    std::memcpy(bytes + 2 * i, &half, 2);
  }
}

// `Rows` rows times kVectors vectors; y and a have row stride n.
template <int64_t Rows>
void add_low_rank_tile(
    float* y, int64_t n, const float* b, int64_t rank, const float* a) {
  Lanes sum[Rows][kVectors];
  for (int64_t i = 0; i < Rows; ++i) {
    std::memcpy(sum[i], y + i * n, sizeof(sum[i]));
  }
  for (int64_t r = 0; r < rank; ++r) {
    Lanes column[kVectors];
    std::memcpy(column, a + r * n, sizeof(column));
    for (int64_t i = 0; i < Rows; ++i) {
      for (int64_t v = 0; v < kVectors; ++v) {
        sum[i][v] += b[i * rank + r] * column[v];
      }
    }
  }
  for (int64_t i = 0; i < Rows; ++i) {
    std::memcpy(y + i * n, sum[i], sizeof(sum[i]));
  }
}

template <int64_t Rows>
void add_low_rank_strip(
    float* y, int64_t n, const float* b, int64_t rank, const float* a) {
  constexpr int64_t width = kVectors * kLanes;
  int64_t j = 0;
  for (; j + width <= n; j += width) {
    add_low_rank_tile<Rows>(y + j, n, b, rank, a + j);
  }
  for (; j < n; ++j) {
    for (int64_t i = 0; i < Rows; ++i) {
      float sum = y[i * n + j];
      for (int64_t r = 0; r < rank; ++r) {
        sum += b[i * rank + r] * a[r * n + j];
      }
      y[i * n + j] = sum;
    }
  }
}

void add_low_rank_rows(
    float* y,
    int64_t rows,
    int64_t n,
    const float* b,
    int64_t rank,
    const float* a) {
  int64_t row = 0;
  for (; row + kRows <= rows; row += kRows) {
    add_low_rank_strip<kRows>(y + row * n, n, b + row * rank, rank, a);
  }
  for (; row < rows; ++row) {
    add_low_rank_strip<1>(y + row * n, n, b + row * rank, rank, a);
  }
}

void combine_rows(float* y, float p, const float* x, float q, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    y[i] = p * y[i] + q * x[i];
  }
}

void blend_bf16_rows(
    const void* a, float p, const void* b, float q, int64_t n, void* out) {
  const char* from_a = static_cast<const char*>(a);
  const char* from_b = static_cast<const char*>(b);
  char* to = static_cast<char*>(out);
  constexpr int64_t kStep = 64;
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    float x[kStep];
    float y[kStep];
    bf16_to_f32_rows(from_a + 2 * i, kStep, x);
    bf16_to_f32_rows(from_b + 2 * i, kStep, y);
    for (int64_t j = 0; j < kStep; ++j) {
      x[j] = p * x[j] + q * y[j];
    }
    f32_to_bf16_rows(x, kStep, to + 2 * i);
  }
  for (; i < n; ++i) {
    float x;
    float y;
    bf16_to_f32_rows(from_a + 2 * i, 1, &x);
    bf16_to_f32_rows(from_b + 2 * i, 1, &y);
    x = p * x + q * y;
    f32_to_bf16_rows(&x, 1, to + 2 * i);
  }
}

void add_dots_rows(const float* x, const float* y, int64_t n, double* sums) {
  // Eight lanes a sum in every build, added in order at the end.
  double lanes[3][8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int64_t j = 0; j < 8; ++j) {
      double a = x[i + j];
      double b = y[i + j];
      lanes[0][j] += a * a;
      lanes[1][j] += b * b;
      lanes[2][j] += a * b;
    }
  }
  for (; i < n; ++i) {
    double a = x[i];
    double b = y[i];
    lanes[0][0] += a * a;
    lanes[1][0] += b * b;
    lanes[2][0] += a * b;
  }
  for (int64_t k = 0; k < 3; ++k) {
    for (int64_t j = 0; j < 8; ++j) {
      sums[k] += lanes[k][j];
    }
  }
}

constexpr RowKernels kRowKernels = {
    bf16_to_f32_rows,
    f16_to_f32_rows,
    f32_to_bf16_rows,
    f32_to_f16_rows,
    add_low_rank_rows,
    combine_rows,
    blend_bf16_rows,
    add_dots_rows,
};

}  // namespace
}  // namespace mlxcel
