// Sixteen-lane vectors for the kernel templates. Included inside an anonymous
// namespace: each kernel file has its own copy.

constexpr int kLanes = 16;
using F = __m512;
using I = __m512i;

inline F f_zero() {
  return _mm512_setzero_ps();
}
inline F f_set(float v) {
  return _mm512_set1_ps(v);
}
inline F f_load(const void* p) {
  return _mm512_loadu_ps(p);
}
inline void f_store(float* p, F v) {
  _mm512_storeu_ps(p, v);
}
inline F f_add(F a, F b) {
  return _mm512_add_ps(a, b);
}
inline F f_sub(F a, F b) {
  return _mm512_sub_ps(a, b);
}
inline F f_mul(F a, F b) {
  return _mm512_mul_ps(a, b);
}
inline F f_div(F a, F b) {
  return _mm512_div_ps(a, b);
}
inline F f_fma(F a, F b, F c) {
  return _mm512_fmadd_ps(a, b, c);
}
inline F f_min(F a, F b) {
  return _mm512_min_ps(a, b);
}
inline F f_max(F a, F b) {
  return _mm512_max_ps(a, b);
}
inline F f_abs(F a) {
  return _mm512_abs_ps(a);
}
inline F f_round(F a) {
  return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT);
}
inline float f_max_lane(F v) {
  return _mm512_reduce_max_ps(v);
}

inline I i_zero() {
  return _mm512_setzero_si512();
}
inline I i_set(int v) {
  return _mm512_set1_epi32(v);
}
inline I i_load(const void* p) {
  return _mm512_loadu_si512(p);
}
inline void i_store(void* p, I v) {
  _mm512_storeu_si512(p, v);
}
// The first `bytes` bytes, a multiple of 4; zeros after them.
inline I i_load_part(const void* p, int64_t bytes) {
  return _mm512_maskz_loadu_epi32(__mmask16((1u << (bytes / 4)) - 1), p);
}
inline I i_and(I a, I b) {
  return _mm512_and_si512(a, b);
}
inline I i_or(I a, I b) {
  return _mm512_or_si512(a, b);
}
inline I i_add(I a, I b) {
  return _mm512_add_epi32(a, b);
}
template <int kShift>
inline I i_shr16(I a) {
  return _mm512_srli_epi16(a, kShift);
}
template <int kShift>
inline I i_shr32(I a) {
  return _mm512_srli_epi32(a, kShift);
}
template <int kShift>
inline I i_shl32(I a) {
  return _mm512_slli_epi32(a, kShift);
}
inline F i_to_f(I a) {
  return _mm512_cvtepi32_ps(a);
}
inline I f_to_i(F a) {
  return _mm512_cvtps_epi32(a);
}
inline F i_as_f(I a) {
  return _mm512_castsi512_ps(a);
}
inline I f_as_i(F a) {
  return _mm512_castps_si512(a);
}
inline F f_permute(F table, I index) {
  return _mm512_permutexvar_ps(index, table);
}
inline I u8_to_i(const void* p) {  // 16 bytes
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
inline I u16_to_i(const void* p) {  // 32 bytes
  return _mm512_cvtepu16_epi32(
      _mm256_loadu_si256(static_cast<const __m256i*>(p)));
}
// Codes of 4 bits in order: 8 bytes to 16 lanes.
inline I nibbles_to_i(const void* p) {
  const __m512i word =
      _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
  const __m512i shift = _mm512_set_epi32(
      28, 24, 20, 16, 12, 8, 4, 0, 28, 24, 20, 16, 12, 8, 4, 0);
  __m512i v =
      _mm512_castsi128_si512(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
  v = _mm512_srlv_epi32(_mm512_permutexvar_epi32(word, v), shift);
  return _mm512_and_si512(v, _mm512_set1_epi32(15));
}

// 16-bit sums of the products of two unsigned bytes of a with signed ones of b.
inline I i_byte_pairs(I a, I b) {
  return _mm512_maddubs_epi16(a, b);
}
inline I i_add16(I a, I b) {
  return _mm512_add_epi16(a, b);
}
// 32-bit sums of 16-bit products in pairs.
inline I i_pairs16(I a, I b) {
  return _mm512_madd_epi16(a, b);
}

// Sums of 16-bit products in pairs, added to 32-bit lanes.
inline I i_dot16(I acc, I a, I b) {
#if defined(__AVX512VNNI__)
  return _mm512_dpwssd_epi32(acc, a, b);
#else
  return _mm512_add_epi32(acc, _mm512_madd_epi16(a, b));
#endif
}

// 32-bit lanes to 16 bits, in order: low lanes from a.
inline I i_pack16(I a, I b) {
  return _mm512_inserti64x4(
      _mm512_castsi256_si512(_mm512_cvtsepi32_epi16(a)),
      _mm512_cvtsepi32_epi16(b),
      1);
}

inline F f16_load(const void* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}
inline F f16_load_part(const void* p, int64_t n) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(__mmask16((1u << n) - 1), p));
}
inline F bf16_load(const void* p) {
  return i_as_f(i_shl32<16>(u16_to_i(p)));
}
inline F bf16_load_part(const void* p, int64_t n) {
  return i_as_f(i_shl32<16>(_mm512_cvtepu16_epi32(
      _mm256_maskz_loadu_epi16(__mmask16((1u << n) - 1), p))));
}
inline F f_load_part(const void* p, int64_t n) {
  return _mm512_maskz_loadu_ps(__mmask16((1u << n) - 1), p);
}
inline void f_store_part(float* p, F v, int64_t n) {
  _mm512_mask_storeu_ps(p, __mmask16((1u << n) - 1), v);
}

inline __m128 fold_to_four(F v) {
  __m256 half =
      _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  return _mm_add_ps(
      _mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

// 16 x 16 transpose of 32-bit elements.
inline void transpose(I* r) {
  I t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88);
    t[4 + i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xdd);
    t[8 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
    t[12 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
    r[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xdd);
    r[4 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0x88);
    r[12 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0xdd);
  }
}
