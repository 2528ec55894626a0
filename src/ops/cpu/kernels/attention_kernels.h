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

// Positions [begin, end) of a block that a query row sees; empty: none.
struct VisibleRange {
  uint8_t begin, end;
};

// Scores [m][64] of a tile against a block. They are in units of log2(e); with
// a cap > 0 they are natural, and cap * tanh(s / cap) is taken first.
struct SoftmaxTile {
  int m;
  float* scores;
  uint16_t* weights_bf16;  // where the kernel writes p as bf16, or null
  const VisibleRange* visible;
  float cap;
  SoftmaxState* states;
  float* factors;  // receives what to multiply a row's former sums by
};

struct AttentionKernels {
  // C [m, n] = A [m, k] B; with factors, C = factors[i] * C + A B. A is f32; B
  // is f32, f16 or bf16, k even for the 16-bit types; n a multiple of 16, the
  // first columns of ldb. lda, ldc in floats.
  void (*product)(
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
      const float* factors);

  // The same with A and B in bf16 and f32 sums; null where the instruction set
  // has no dot product of bf16 pairs. lda in elements.
  void (*product_bf16)(
      const uint16_t* a,
      int lda,
      const uint16_t* b,
      int ldb,
      int n,
      int k,
      int m,
      float* c,
      int ldc,
      const float* factors);

  // B of a 16-bit type as plain f32 rows [k][n]; n a multiple of 16.
  void (*widen)(const void* b, DType b_type, int n, int k, float* out);
  // count a multiple of 32
  void (*f16_to_bf16)(const uint16_t* from, uint16_t* to, int64_t count);
  // Rounds factor * from to bf16, or to f16, where values past its range become
  // its largest.
  void (*narrow)(
      const float* from,
      float factor,
      DType to_type,
      uint16_t* to,
      int64_t count);

  // Values from keys, for one position or two a row as the cache lays them out
  // (kv_cache.h): keys [features][64], values [positions][pitch]; and keys
  // [features / 2][64] and values [positions / 2][pitch] of 16-bit pairs, both
  // counts even.
  void (*turn_f32)(
      const float* keys, int features, int positions, float* values, int pitch);
  void (*turn_pairs)(
      const uint32_t* keys,
      int features,
      int positions,
      uint32_t* values,
      int pitch);

  // Replaces the scores by p, 0 where not visible. With weights_bf16, p goes
  // there instead. exp2 is within 2.2e-7 of the true value, relatively.
  void (*softmax)(const SoftmaxTile& tile);

  // y = factor * x, and y += factor * x
  void (*scale)(float* y, const float* x, float factor, int64_t n);
  void (*add_scaled)(float* y, const float* x, float factor, int64_t n);
  // y = y / (1 + e^-x)
  void (*multiply_sigmoid)(float* y, const float* x, int64_t n);
  // Dimension pairs of a head turned in place: see RopeTable.
  void (*rotate)(
      float* x,
      const float* cosine,
      const float* sine,
      int half,
      bool interleaved);
};

const AttentionKernels& attention_kernels(Isa isa);

extern const AttentionKernels kAttentionPortable, kAttentionAvx2,
    kAttentionAvx512, kAttentionAvx512Bf16;

}  // namespace mlxcel::cpu
