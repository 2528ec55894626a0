// Sixteen f32 lanes with AVX-512 F, BW, DQ and VL, for the kernel templates.
// Included only by files compiled for that instruction set: all of it is local
// to them.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace mlxcel::cpu {
namespace {

struct Vector {
  using F = __m512;
  static constexpr int kWidth = 16;
  static constexpr int kTileVectors = 4;  // of columns in a product's tile

  static F zero() {
    return _mm512_setzero_ps();
  }
  static F set(float x) {
    return _mm512_set1_ps(x);
  }
  static F load(const float* x) {
    return _mm512_loadu_ps(x);
  }
  static void store(float* y, F x) {
    _mm512_storeu_ps(y, x);
  }
  static F add(F a, F b) {
    return _mm512_add_ps(a, b);
  }
  static F sub(F a, F b) {
    return _mm512_sub_ps(a, b);
  }
  static F mul(F a, F b) {
    return _mm512_mul_ps(a, b);
  }
  static F div(F a, F b) {
    return _mm512_div_ps(a, b);
  }
  static F fma(F a, F b, F c) {
    return _mm512_fmadd_ps(a, b, c);
  }
  static F max(F a, F b) {
    return _mm512_max_ps(a, b);
  }
  static F abs(F a) {
    return _mm512_abs_ps(a);
  }
  // x limited to [-bound, bound]; NaN stays.
  static F clamp(F x, F bound) {
    x = _mm512_min_ps(bound, x);
    return _mm512_max_ps(_mm512_sub_ps(_mm512_setzero_ps(), bound), x);
  }
  static F copy_sign(F magnitude, F sign) {
    F bit = _mm512_set1_ps(-0.0f);
    return _mm512_or_ps(magnitude, _mm512_and_ps(bit, sign));
  }
  static float first(F x) {
    return _mm512_cvtss_f32(x);
  }
  // a where |x| < bound, else b
  static F select_below(F x, F bound, F a, F b) {
    return _mm512_mask_blend_ps(
        _mm512_cmp_ps_mask(_mm512_abs_ps(x), bound, _CMP_LT_OQ), b, a);
  }

  // a where x > 0, else b
  static F where_positive(F x, F a, F b) {
    return _mm512_mask_blend_ps(
        _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GT_OQ), b, a);
  }

  // Lanes [begin, end) of the vector that starts at lane `first`.
  using Mask = __mmask16;
  static Mask lanes(int first, int begin, int end) {
    uint64_t below_end = end >= 64 ? ~uint64_t(0) : (uint64_t(1) << end) - 1;
    uint64_t visible = below_end >> begin << begin;
    return Mask(visible >> first);
  }
  static F keep(Mask mask, F x, F otherwise) {
    return _mm512_mask_blend_ps(mask, otherwise, x);
  }

  static float reduce_add(F x) {
    return _mm512_reduce_add_ps(x);
  }
  static float reduce_max(F x) {
    return _mm512_reduce_max_ps(x);
  }

  // x = n + f, f in [-1/2, 1/2]
  static F round(F x) {
    return _mm512_roundscale_ps(
        x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static F times_power_of_2(F x, F n) {
    return _mm512_scalef_ps(x, n);
  }

  // Pairs of a 16-bit matrix (rows k, k + 1 interleaved): kWidth columns as two
  // vectors. f16: columns' pairs side by side; bf16: row k, then row k + 1.
  template <bool kBf16>
  static void load_pairs(const uint16_t* b, F& x0, F& x1) {
    if constexpr (kBf16) {
      __m512i pairs = _mm512_loadu_si512(b);
      x0 = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
      x1 = _mm512_castsi512_ps(
          _mm512_and_si512(pairs, _mm512_set1_epi32(int(0xffff0000u))));
    } else {
      x0 = load_f16(b);
      x1 = load_f16(b + 16);
    }
  }
  // The factors a[0], a[1] in the arrangement of load_pairs.
  template <bool kBf16>
  static void set_pair(const float* a, F& a0, F& a1) {
    if constexpr (kBf16) {
      a0 = _mm512_set1_ps(a[0]);
      a1 = _mm512_set1_ps(a[1]);
    } else {
      double pair;
      __builtin_memcpy(&pair, a, sizeof(pair));
      a0 = a1 = _mm512_castpd_ps(_mm512_set1_pd(pair));
    }
  }
  static F even_lanes(F x0, F x1) {
    __m512i index = _mm512_setr_epi32(
        0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    return _mm512_permutex2var_ps(x0, index, x1);
  }
  static F odd_lanes(F x0, F x1) {
    __m512i index = _mm512_setr_epi32(
        1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    return _mm512_permutex2var_ps(x0, index, x1);
  }
  template <bool kBf16>
  static F sum_pairs(F x0, F x1) {
    if constexpr (kBf16) {
      return _mm512_add_ps(x0, x1);
    } else {
      return _mm512_add_ps(even_lanes(x0, x1), odd_lanes(x0, x1));
    }
  }
  // The two rows of kWidth columns.
  template <bool kBf16>
  static void load_rows(const uint16_t* b, F& row0, F& row1) {
    F x0, x1;
    load_pairs<kBf16>(b, x0, x1);
    row0 = kBf16 ? x0 : even_lanes(x0, x1);
    row1 = kBf16 ? x1 : odd_lanes(x0, x1);
  }

  // Rounding to nearest, ties to even; the caller limits the range of f16.
  static void store_f16(uint16_t* to, F x) {
    _mm256_storeu_si256(
        reinterpret_cast<__m256i*>(to),
        _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static void store_bf16(uint16_t* to, F x) {
#ifdef __AVX512BF16__
    _mm256_storeu_si256(
        reinterpret_cast<__m256i*>(to), (__m256i)_mm512_cvtneps_pbh(x));
#else
    __m512i bits = _mm512_castps_si512(x);
    __m512i odd =
        _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_srli_epi32(
        _mm512_add_epi32(
            bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))),
        16);
    __m512i quiet =
        _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    _mm256_storeu_si256(
        reinterpret_cast<__m256i*>(to),
        _mm512_cvtepi32_epi16(_mm512_mask_blend_epi32(nan, rounded, quiet)));
#endif
  }
  static void store_bf16(uint16_t* to, F x0, F x1) {
#ifdef __AVX512BF16__
    _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(x1, x0));
#else
    store_bf16(to, x0);
    store_bf16(to + kWidth, x1);
#endif
  }
  static F load_f16(const uint16_t* from) {
    return _mm512_cvtph_ps(
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }

  // Complex products of kWidth / 2 adjacent pairs by (cosine, sine).
  static F rotate_pairs(F x, const float* cosine, const float* sine) {
    __m512i twice =
        _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    __m512 c = _mm512_permutexvar_ps(
        twice, _mm512_castps256_ps512(_mm256_loadu_ps(cosine)));
    __m512 s = _mm512_permutexvar_ps(
        twice, _mm512_castps256_ps512(_mm256_loadu_ps(sine)));
    return _mm512_fmaddsub_ps(
        x, c, _mm512_mul_ps(_mm512_permute_ps(x, 0xb1), s));
  }
};

}  // namespace
}  // namespace mlxcel::cpu
