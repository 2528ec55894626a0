// Kernels over rows of floats that change weights at load time: conversions
// between storage dtypes and f32, and the sums that adapters and surgery need.
// Every instruction set gives the same bits: no fused multiply-add, sums in a
// fixed order.
#pragma once

#include "core/dtype.h"

#include <cstdint>

namespace mlxcel {

struct RowKernels {
  // n elements at any alignment; 16-bit results round to nearest even.
  void (*bf16_to_f32)(const void* source, int64_t n, float* out);
  void (*f16_to_f32)(const void* source, int64_t n, float* out);
  void (*f32_to_bf16)(const float* source, int64_t n, void* out);
  void (*f32_to_f16)(const float* source, int64_t n, void* out);
  // y[i][j] += sum over r of b[i * rank + r] * a[r * n + j], r ascending, for
  // rows i < rows of y at y + i * n.
  void (*add_low_rank)(
      float* y,
      int64_t rows,
      int64_t n,
      const float* b,
      int64_t rank,
      const float* a);
  // y = p * y + q * x
  void (*combine)(float* y, float p, const float* x, float q, int64_t n);
  // out = p * a + q * b, all three bf16: combine() without f32 rows between.
  void (*blend_bf16)(
      const void* a, float p, const void* b, float q, int64_t n, void* out);
  // sums[0] += x.x, sums[1] += y.y, sums[2] += x.y, in f64.
  void (*add_dots)(const float* x, const float* y, int64_t n, double* sums);
};

// For the chosen instruction set (choose_isa).
const RowKernels& row_kernels();

// Any float dtype (f16, bf16, f32, f64), any alignment.
void convert_to_f32(DType from, const void* source, int64_t n, float* out);
void convert_from_f32(const float* source, int64_t n, DType to, void* out);

}  // namespace mlxcel
