// Eight-lane vectors for the kernel templates. Included inside an anonymous
// namespace: each kernel file has its own copy.

constexpr int kLanes = 8;
using F = __m256;
using I = __m256i;

inline F f_zero() {
  return _mm256_setzero_ps();
}
inline F f_set(float v) {
  return _mm256_set1_ps(v);
}
inline F f_load(const void* p) {
  return _mm256_loadu_ps(static_cast<const float*>(p));
}
inline void f_store(float* p, F v) {
  _mm256_storeu_ps(p, v);
}
inline F f_add(F a, F b) {
  return _mm256_add_ps(a, b);
}
inline F f_sub(F a, F b) {
  return _mm256_sub_ps(a, b);
}
inline F f_mul(F a, F b) {
  return _mm256_mul_ps(a, b);
}
inline F f_div(F a, F b) {
  return _mm256_div_ps(a, b);
}
inline F f_fma(F a, F b, F c) {
  return _mm256_fmadd_ps(a, b, c);
}
inline F f_min(F a, F b) {
  return _mm256_min_ps(a, b);
}
inline F f_max(F a, F b) {
  return _mm256_max_ps(a, b);
}
inline F f_abs(F a) {
  return _mm256_andnot_ps(_mm256_set1_ps(-0.f), a);
}
inline F f_round(F a) {
  return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline float f_max_lane(F v) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

inline I i_zero() {
  return _mm256_setzero_si256();
}
inline I i_set(int v) {
  return _mm256_set1_epi32(v);
}
inline I i_load(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
inline void i_store(void* p, I v) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), v);
}
inline __m256i first_lanes(int64_t n) {
  return _mm256_cmpgt_epi32(
      _mm256_set1_epi32(int(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
// The first `bytes` bytes, a multiple of 4; zeros after them.
inline I i_load_part(const void* p, int64_t bytes) {
  return _mm256_maskload_epi32(
      static_cast<const int*>(p), first_lanes(bytes / 4));
}
inline I i_and(I a, I b) {
  return _mm256_and_si256(a, b);
}
inline I i_or(I a, I b) {
  return _mm256_or_si256(a, b);
}
inline I i_add(I a, I b) {
  return _mm256_add_epi32(a, b);
}
template <int kShift>
inline I i_shr16(I a) {
  return _mm256_srli_epi16(a, kShift);
}
template <int kShift>
inline I i_shr32(I a) {
  return _mm256_srli_epi32(a, kShift);
}
template <int kShift>
inline I i_shl32(I a) {
  return _mm256_slli_epi32(a, kShift);
}
inline F i_to_f(I a) {
  return _mm256_cvtepi32_ps(a);
}
inline I f_to_i(F a) {
  return _mm256_cvtps_epi32(a);
}
inline F i_as_f(I a) {
  return _mm256_castsi256_ps(a);
}
inline I f_as_i(F a) {
  return _mm256_castps_si256(a);
}
inline F f_permute(F table, I index) {
  return _mm256_permutevar8x32_ps(table, index);
}
inline I u8_to_i(const void* p) {  // 8 bytes
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
}
inline I u16_to_i(const void* p) {  // 16 bytes
  return _mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
// Codes of 4 bits in order: 4 bytes to 8 lanes.
inline I nibbles_to_i(const void* p) {
  int word;
  __builtin_memcpy(&word, p, 4);
  __m256i v = _mm256_srlv_epi32(
      _mm256_set1_epi32(word), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
  return _mm256_and_si256(v, _mm256_set1_epi32(15));
}

// 16-bit sums of the products of two unsigned bytes of a with signed ones of b.
inline I i_byte_pairs(I a, I b) {
  return _mm256_maddubs_epi16(a, b);
}
inline I i_add16(I a, I b) {
  return _mm256_add_epi16(a, b);
}
// 32-bit sums of 16-bit products in pairs.
inline I i_pairs16(I a, I b) {
  return _mm256_madd_epi16(a, b);
}

// Sums of 16-bit products in pairs, added to 32-bit lanes.
inline I i_dot16(I acc, I a, I b) {
  return _mm256_add_epi32(acc, _mm256_madd_epi16(a, b));
}

// 32-bit lanes to 16 bits, in order: low lanes from a.
inline I i_pack16(I a, I b) {
  return _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
}

inline F f16_load(const void* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
inline __m128i load_halves(const void* p, int64_t n) {
  uint16_t buffer[8] = {};
  __builtin_memcpy(buffer, p, size_t(n) * 2);
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(buffer));
}
inline F f16_load_part(const void* p, int64_t n) {
  return _mm256_cvtph_ps(load_halves(p, n));
}
inline F bf16_load(const void* p) {
  return i_as_f(i_shl32<16>(u16_to_i(p)));
}
inline F bf16_load_part(const void* p, int64_t n) {
  return i_as_f(i_shl32<16>(_mm256_cvtepu16_epi32(load_halves(p, n))));
}
inline F f_load_part(const void* p, int64_t n) {
  return _mm256_maskload_ps(static_cast<const float*>(p), first_lanes(n));
}
inline void f_store_part(float* p, F v, int64_t n) {
  _mm256_maskstore_ps(p, first_lanes(n), v);
}

inline __m128 fold_to_four(F v) {
  return _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
}

#include "ops/cpu/kernels/transpose_eight.h"

inline void transpose(I* r) {
  transpose_eight(r);
}
