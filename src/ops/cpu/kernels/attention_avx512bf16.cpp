#include "ops/cpu/kernels/vector_avx512.h"
// The templates need the vector type.
#include "ops/cpu/kernels/attention_simd.h"

namespace mlxcel::cpu {

namespace {

template <int kR, int kV>
inline void tile_bf16(
    const uint16_t* a,
    int lda,
    const uint16_t* b,
    int ldb,
    int k,
    float* c,
    int ldc,
    const float* factors) {
  __m512 sums[kR][kV];
  for (auto& row : sums) {
    for (auto& sum : row) {
      sum = _mm512_setzero_ps();
    }
  }
  for (int p = 0; p < k; p += 2) {
    __m512bh x[kV];
#pragma GCC unroll 4
    for (int v = 0; v < kV; ++v) {
      x[v] = (__m512bh)_mm512_loadu_si512(b + int64_t(p) * ldb + 32 * v);
    }
#pragma GCC unroll 6
    for (int r = 0; r < kR; ++r) {
      int pair;
      __builtin_memcpy(&pair, a + r * lda + p, sizeof(pair));
      __m512bh factor = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 4
      for (int v = 0; v < kV; ++v) {
        sums[r][v] = _mm512_dpbf16_ps(sums[r][v], factor, x[v]);
      }
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kV; ++v) {
      store_sum(
          c + r * ldc + 16 * v, sums[r][v], factors ? factors + r : nullptr);
    }
  }
}

void product_bf16(
    const uint16_t* a,
    int lda,
    const uint16_t* b,
    int ldb,
    int n,
    int k,
    int m,
    float* c,
    int ldc,
    const float* factors) {
  for_tiles<kTileRows>(m, n, [&]<int kR, int kV>(int i, int j) {
    tile_bf16<kR, kV>(
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

}  // namespace

const AttentionKernels kAttentionAvx512Bf16 = {
    .product = product,
    .product_bf16 = product_bf16,
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
