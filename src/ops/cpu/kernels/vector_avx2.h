// Eight f32 lanes with AVX2, FMA and F16C, for the kernel templates. Included
// only by files compiled for that instruction set: all of it is local to them.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace mlxcel::cpu {
namespace {

struct Vector {
  using F = __m256;
  static constexpr int kWidth = 8;
  static constexpr int kTileVectors = 2;  // of columns in a product's tile

  static F zero() {
    return _mm256_setzero_ps();
  }
  static F set(float x) {
    return _mm256_set1_ps(x);
  }
  static F load(const float* x) {
    return _mm256_loadu_ps(x);
  }
  static void store(float* y, F x) {
    _mm256_storeu_ps(y, x);
  }
  static F add(F a, F b) {
    return _mm256_add_ps(a, b);
  }
  static F sub(F a, F b) {
    return _mm256_sub_ps(a, b);
  }
  static F mul(F a, F b) {
    return _mm256_mul_ps(a, b);
  }
  static F div(F a, F b) {
    return _mm256_div_ps(a, b);
  }
  static F fma(F a, F b, F c) {
    return _mm256_fmadd_ps(a, b, c);
  }
  static F max(F a, F b) {
    return _mm256_max_ps(a, b);
  }
  static F abs(F a) {
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
  }
  // x limited to [-bound, bound]; NaN stays.
  static F clamp(F x, F bound) {
    x = _mm256_min_ps(bound, x);
    return _mm256_max_ps(_mm256_sub_ps(_mm256_setzero_ps(), bound), x);
  }
  static F copy_sign(F magnitude, F sign) {
    F bit = _mm256_set1_ps(-0.0f);
    return _mm256_or_ps(magnitude, _mm256_and_ps(bit, sign));
  }
  static float first(F x) {
    return _mm256_cvtss_f32(x);
  }
  // a where |x| < bound, else b
  static F select_below(F x, F bound, F a, F b) {
    return _mm256_blendv_ps(b, a, _mm256_cmp_ps(abs(x), bound, _CMP_LT_OQ));
  }

  // a where x > 0, else b
  static F where_positive(F x, F a, F b) {
    return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, zero(), _CMP_GT_OQ));
  }

  // Lanes [begin, end) of the vector that starts at lane `first`.
  using Mask = __m256;
  static Mask lanes(int first, int begin, int end) {
    __m256i lane = _mm256_add_epi32(
        _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(first));
    return _mm256_castsi256_ps(_mm256_andnot_si256(
        _mm256_cmpgt_epi32(_mm256_set1_epi32(begin), lane),
        _mm256_cmpgt_epi32(_mm256_set1_epi32(end), lane)));
  }
  static F keep(Mask mask, F x, F otherwise) {
    return _mm256_blendv_ps(otherwise, x, mask);
  }

  static float reduce_add(F x) {
    __m128 half =
        _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
  }
  static float reduce_max(F x) {
    __m128 half =
        _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
  }

  // x = n + f, f in [-1/2, 1/2]; 0 for n below the exponents of f32.
  static F round(F x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static F times_power_of_2(F x, F n) {
    __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    __m256 scaled =
        _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), exponent));
    return _mm256_and_ps(
        scaled, _mm256_cmp_ps(n, _mm256_set1_ps(-126), _CMP_GT_OQ));
  }

  // Pairs of a 16-bit matrix (rows k, k + 1 interleaved): kWidth columns as two
  // vectors. f16: columns' pairs side by side; bf16: row k, then row k + 1.
  template <bool kBf16>
  static void load_pairs(const uint16_t* b, F& x0, F& x1) {
    if constexpr (kBf16) {
      __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b));
      x0 = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
      x1 = _mm256_castsi256_ps(
          _mm256_and_si256(pairs, _mm256_set1_epi32(int(0xffff0000u))));
    } else {
      x0 =
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(b)));
      x1 = _mm256_cvtph_ps(
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(b + 8)));
    }
  }
  // The factors a[0], a[1] in the arrangement of load_pairs.
  template <bool kBf16>
  static void set_pair(const float* a, F& a0, F& a1) {
    if constexpr (kBf16) {
      a0 = _mm256_broadcast_ss(a);
      a1 = _mm256_broadcast_ss(a + 1);
    } else {
      double pair;
      __builtin_memcpy(&pair, a, sizeof(pair));
      a0 = a1 = _mm256_castpd_ps(_mm256_set1_pd(pair));
    }
  }
  template <bool kBf16>
  static F sum_pairs(F x0, F x1) {
    if constexpr (kBf16) {
      return _mm256_add_ps(x0, x1);
    } else {
      // columns 0 1 4 5 | 2 3 6 7
      __m256d sums = _mm256_castps_pd(_mm256_hadd_ps(x0, x1));
      return _mm256_castpd_ps(_mm256_permute4x64_pd(sums, 0xd8));
    }
  }
  // The two rows of kWidth columns.
  template <bool kBf16>
  static void load_rows(const uint16_t* b, F& row0, F& row1) {
    F x0, x1;
    load_pairs<kBf16>(b, x0, x1);
    if constexpr (kBf16) {
      row0 = x0;
      row1 = x1;
    } else {
      __m256d even = _mm256_castps_pd(_mm256_shuffle_ps(x0, x1, 0x88));
      __m256d odd = _mm256_castps_pd(_mm256_shuffle_ps(x0, x1, 0xdd));
      row0 = _mm256_castpd_ps(_mm256_permute4x64_pd(even, 0xd8));
      row1 = _mm256_castpd_ps(_mm256_permute4x64_pd(odd, 0xd8));
    }
  }

  // Rounding to nearest, ties to even; the caller limits the range of f16.
  static void store_f16(uint16_t* to, F x) {
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(to),
        _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static void store_bf16(uint16_t* to, F x) {
    __m256i bits = _mm256_castps_si256(x);
    __m256i odd =
        _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_srli_epi32(
        _mm256_add_epi32(
            bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))),
        16);
    __m256i quiet =
        _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    rounded = _mm256_blendv_epi8(rounded, quiet, nan);
    __m256i packed =
        _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded, rounded), 0xd8);
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(packed));
  }
  static void store_bf16(uint16_t* to, F x0, F x1) {
    store_bf16(to, x0);
    store_bf16(to + kWidth, x1);
  }
  static F load_f16(const uint16_t* from) {
    return _mm256_cvtph_ps(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }

  // Complex products of kWidth / 2 adjacent pairs by (cosine, sine).
  static F rotate_pairs(F x, const float* cosine, const float* sine) {
    __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    __m256 c = _mm256_permutevar8x32_ps(
        _mm256_castps128_ps256(_mm_loadu_ps(cosine)), twice);
    __m256 s = _mm256_permutevar8x32_ps(
        _mm256_castps128_ps256(_mm_loadu_ps(sine)), twice);
    return _mm256_fmaddsub_ps(
        x, c, _mm256_mul_ps(_mm256_permute_ps(x, 0xb1), s));
  }
};

}  // namespace
}  // namespace mlxcel::cpu
