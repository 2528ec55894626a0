// Kernels of attention over one block of the cache, one set an instruction set.
//
// All matrices B are in the cache's layout: columns side by side, and for the
// 16-bit types rows 2i and 2i + 1 interleaved ([k / 2][n][2]). The value of a
// result never depends on the number of rows m: a set adds over k in one order.
#pragma once

#include "core/cpu_features.h"
#include "core/dtype.h"

#include <cstdint>

namespace mlxcel::cpu {

// The online softmax of one query row: p = exp2(s - max).
struct SoftmaxState {
  float max;
  float sum;
};

struct AttentionKernels {
  // C [m, n] = A [m, k] B, plus C when `accumulate`. A is f32; B is f32, f16 or
  // bf16, k even for the 16-bit types; n a multiple of 16. lda, ldc in floats.
  void (*product)(
      const float* a,
      int lda,
      const void* b,
      DType b_type,
      int n,
      int k,
      int m,
      float* c,
      int ldc,
      bool accumulate);

  // The same with A and B in bf16 and f32 sums; null where the instruction set
  // has no dot product of bf16 pairs. lda in elements.
  void (*product_bf16)(
      const uint16_t* a,
      int lda,
      const uint16_t* b,
      int n,
      int k,
      int m,
      float* c,
      int ldc,
      bool accumulate);

  // B of a 16-bit type as plain f32 rows [k][n].
  void (*widen)(const void* b, DType b_type, int n, int k, float* out);
  void (*f16_to_bf16)(const uint16_t* from, uint16_t* to, int64_t count);
  // Rounds to f16 (finite values past its range become its largest) or bf16.
  void (*narrow)(const float* from, DType to_type, uint16_t* to, int64_t count);

  // One row of 64 scores of a block, of which [begin, end) are visible, begin <
  // end. Scores are in units of log2(e); with a cap > 0 they are natural, and
  // cap * tanh(s / cap) is taken first. Replaces s by p (0 where not visible),
  // also as bf16 when p_bf16 is given. Returns the factor for what was summed
  // before. exp2 is within 2e-7 of the true value, relatively.
  float (*softmax)(
      float* s,
      int begin,
      int end,
      float cap,
      SoftmaxState* state,
      uint16_t* p_bf16);

  // y = factor * y, and y += factor * x
  void (*scale)(float* y, float factor, int64_t n);
  void (*add_scaled)(float* y, const float* x, float factor, int64_t n);
  // Dimension pairs of a head turned in place: see RopeTable.
  void (*rotate)(
      float* x,
      const float* cosine,
      const float* sine,
      int half,
      bool interleaved);
};

const AttentionKernels& attention_kernels(Isa isa);

extern const AttentionKernels kAttentionPortable;

}  // namespace mlxcel::cpu
