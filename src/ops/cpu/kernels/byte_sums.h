// Prefill products of codes of up to 5 bits with 8-bit activations where bytes
// are multiplied in pairs with 16-bit sums (no VNNI). Included inside an
// anonymous namespace, after panel_kernels.h, in place of byte_panels.h.
//
// Eight columns of an activation row share a scale t m: t is the row's, m an
// integer. An output is
//   y = t sum_group (s sum_eight m sum q e + b sum_eight m sum e)
// with integers e up to 127. The sums of a group are exact: those of eight
// columns take 16 bits a pair of bytes, one product by m adds the pairs to 32.
//   tile:  [unit][row] of 4 integers, [block][2][row] two m each,
//          [group][row] sum m e, [row] t
//   strip: [group]{ [output] s, [output] b, [unit][output] of 4 codes }
// A block has 32 columns, 8 units. Units take the columns of a word of 4-bit
// codes in the order in which the word comes apart: even ones, odd ones. The
// first m of a half block belongs to bytes 0 and 1 of its four units, the
// second to bytes 2 and 3.

#if defined(__AVX512F__)
#include "ops/cpu/kernels/transpose_eight.h"
#endif

constexpr int kByteOutputs = kStrip;  // of a strip
constexpr int64_t kByteBlock = 32;
constexpr int64_t kBlockUnits = kByteBlock / 4, kHalfUnits = kBlockUnits / 2;
// The largest m. Groups of up to 128 codes of 5 bits fit 32 bits:
// 128 * 31 * 127 * 4096 < 2^31; and 8 products 16 bits: 8 * 31 * 127 < 2^15.
constexpr float kMostFactor = 4095;
// Stores of whole vectors reach past the last unit.
constexpr int64_t kByteSlack = 32;

// Where the parts of a tile of `rows` rows begin, in bytes.
struct ByteTile {
  ByteTile(const Matrix& m, int rows)
      : factors(ceil_to(m.in * rows + kByteSlack, 64)),
        sums(factors + m.in / kByteBlock * 2 * rows * 4),
        scales(sums + m.in / m.quant.group_size * rows * 4),
        end(scales + rows * 4) {}
  int64_t factors, sums, scales, end;
};

inline size_t byte_tile_bytes(const Matrix& m, int rows) {
  return size_t(ceil_to(ByteTile(m, rows).end, 64));
}

inline int64_t byte_strip_bytes(const Matrix& m, int64_t columns) {
  return columns / m.quant.group_size * 2 * kStrip * 4 + columns * kStrip;
}

// Bits of floats that are not negative grow with them; NaN is above all.
inline __m256i absolute_bits(const float* x) {
  return _mm256_and_si256(
      _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)),
      _mm256_set1_epi32(0x7fffffff));
}

inline float largest_of_row(const float* x, int64_t count) {
  __m256i a = _mm256_setzero_si256(), b = a;
  for (int64_t k = 0; k < count; k += 16) {
    a = _mm256_max_epi32(a, absolute_bits(x + k));
    b = _mm256_max_epi32(b, absolute_bits(x + k + 8));
  }
  a = _mm256_max_epi32(a, b);
  __m128i v =
      _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  v = _mm_max_epi32(v, _mm_shuffle_epi32(v, 0x4e));
  v = _mm_max_epi32(v, _mm_shuffle_epi32(v, 0xb1));
  return from_bits(uint32_t(_mm_cvtsi128_si32(v)));
}

// A row's scale t, and what turns values into multiples of it.
struct RowScale {
  explicit RowScale(float top) {
    constexpr float kSmallest = 1e-30f;  // below it 1 / t might be infinite
    bool none = top <= kSmallest;
    scale = none ? 0 : top / (127 * kMostFactor);
    steps = none ? 0 : kMostFactor / top;
  }
  float scale, steps;
};

// The factor of eight columns in each lane that holds one of them.
inline __m256 half_block_factor(const float* x, float steps) {
  __m256i v = _mm256_max_epi32(absolute_bits(x), absolute_bits(x + 8));
  v = _mm256_max_epi32(v, _mm256_shuffle_epi32(v, 0x4e));
  v = _mm256_max_epi32(v, _mm256_shuffle_epi32(v, 0xb1));
  __m256 m = _mm256_mul_ps(_mm256_castsi256_ps(v), _mm256_set1_ps(steps));
  return _mm256_max_ps(
      _mm256_round_ps(m, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC),
      _mm256_set1_ps(1));
}

// Two factors as 16-bit integers.
inline uint32_t factor_pair(__m256i m) {
  return uint32_t(_mm256_cvtsi256_si32(m)) |
         uint32_t(_mm256_extract_epi32(m, 4)) << 16;
}

// A block of a row: its units, its factors, and sums of m e added to sum.
inline __m256i block_units(
    const float* x, float steps, uint32_t* factors, __m256i* sum) {
  __m256i e[4];
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const float* from = x + half * 16;
    __m256 m = half_block_factor(from, steps);
    __m256 inverse = _mm256_div_ps(_mm256_set1_ps(127 * steps), m);
    __m256i integer = _mm256_cvtps_epi32(m);
#pragma GCC unroll 2
    for (int w = 0; w < 2; ++w) {
      e[2 * half + w] = _mm256_cvtps_epi32(
          _mm256_mul_ps(_mm256_loadu_ps(from + w * 8), inverse));
    }
    *sum = _mm256_add_epi32(
        *sum,
        _mm256_mullo_epi32(
            _mm256_add_epi32(e[2 * half], e[2 * half + 1]), integer));
    factors[half] = factor_pair(integer);
  }
  // Bytes 4 w + i of 128-bit lane l: column 4 l + i of word w.
  __m256i bytes = _mm256_packs_epi16(
      _mm256_packs_epi32(e[0], e[1]), _mm256_packs_epi32(e[2], e[3]));
  bytes = _mm256_permutevar8x32_epi32(
      bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  return _mm256_shuffle_epi8(
      bytes,
      _mm256_broadcastsi128_si256(
          _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15)));
}

inline float sum_of_lanes(__m256i v) {
  __m128i s =
      _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
  return float(_mm_cvtsi128_si32(s));
}

void byte_tile_pack(
    const Matrix& m, const float* x, int64_t ldx, int rows, std::byte* out) {
  constexpr int kEight = 8;  // rows a transpose takes
  constexpr int kTurns = (kTileRows + kEight - 1) / kEight;
  ByteTile at(m, rows);
  auto* factors = reinterpret_cast<uint32_t*>(out + at.factors);
  auto* sums = reinterpret_cast<float*>(out + at.sums);
  auto* scales = reinterpret_cast<float*>(out + at.scales);
  float steps[kTileRows];
  __m256i sum[kTileRows];
  for (int i = 0; i < rows; ++i) {
    RowScale scale(largest_of_row(x + i * ldx, m.in));
    scales[i] = scale.scale;
    steps[i] = scale.steps;
    sum[i] = _mm256_setzero_si256();
  }
  for (int64_t k = 0; k < m.in; k += kByteBlock) {
    __m256i units[kTurns * kEight];
    for (int i = 0; i < kTurns * kEight; ++i) {
      units[i] = _mm256_setzero_si256();
      if (i < rows) {
        uint32_t factor[2];
        units[i] = block_units(x + i * ldx + k, steps[i], factor, sum + i);
        factors[i] = factor[0];
        factors[rows + i] = factor[1];
      }
    }
    factors += 2 * rows;
    for (int t = 0; t < kTurns; ++t) {
      transpose_eight(units + t * kEight);
    }
    std::byte* to = out + k * rows;
    for (int u = 0; u < kBlockUnits; ++u, to += rows * 4) {
      for (int t = 0; t * kEight < rows; ++t) {
        _mm256_storeu_si256(
            reinterpret_cast<__m256i*>(to + t * kEight * 4),
            units[t * kEight + u]);
      }
    }
    if ((k + kByteBlock) % m.quant.group_size == 0) {
      for (int i = 0; i < rows; ++i) {
        sums[i] = sum_of_lanes(sum[i]);
        sum[i] = _mm256_setzero_si256();
      }
      sums += rows;
    }
  }
}

// The units of kLanes outputs' columns [k0, k1), a group or more. Those of
// outputs past `count` are zero. Words of eight codes are transposed before
// they are taken apart.
struct StripUnits {
  StripUnits(const Matrix& m, std::byte* strip)
      : group(m.quant.group_size / 8),
        pitch(2 * kStrip * 4 + m.quant.group_size * kStrip),
        units(strip + 2 * kStrip * 4) {}
  // Of the even columns of the strip's word of eight codes; the odd ones follow
  // kStrip lanes later.
  std::byte* word(int64_t index) const {
    return units + index / group * pitch + index % group * 2 * kStrip * 4;
  }
  int64_t group, pitch;  // words of a group, bytes from group to group
  std::byte* units;
};

void nibble_units(
    const Matrix& m,
    int64_t row,
    int count,
    int64_t k0,
    int64_t k1,
    StripUnits to) {
  int64_t words = (k1 - k0) / 8;
  for (int64_t word = 0; word < words; word += kLanes) {
    int64_t n = min_of(kLanes, words - word);
    I r[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      r[i] = i_zero();
      if (i < count) {
        const std::byte* p =
            m.weight + size_t(row + i) * m.weight_stride + k0 / 2 + word * 4;
        r[i] = n == kLanes ? i_load(p) : i_load_part(p, n * 4);
      }
    }
    transpose(r);
    const I low = i_set(0x0f0f0f0f);
    for (int64_t j = 0; j < n; ++j) {
      std::byte* out = to.word(word + j);
      i_store(out, i_and(r[j], low));
      i_store(out + kStrip * 4, i_and(i_shr16<4>(r[j]), low));
    }
  }
}

// The same for any number of bits: eight codes fill that many bytes.
void coded_units(
    const Matrix& m,
    int64_t row,
    int count,
    int64_t k0,
    int64_t k1,
    StripUnits to) {
  int bits = m.quant.bits;
  uint32_t mask = (1u << bits) - 1;
  for (int i = 0; i < kLanes; ++i) {
    const std::byte* codes = m.weight + k0 * bits / 8;
    codes += size_t(row + (i < count ? i : 0)) * m.weight_stride;
    for (int64_t w = 0; w < (k1 - k0) / 8; ++w) {
      uint64_t word = 0;
      if (i < count) {
        __builtin_memcpy(&word, codes + w * bits, size_t(bits));
      }
      std::byte* out = to.word(w) + i * 4;
      for (int c = 0; c < 8; ++c, word >>= bits) {
        out[c % 2 * kStrip * 4 + c / 2] = std::byte(word & mask);
      }
    }
  }
}

void byte_strip_pack_of(
    const Matrix& m,
    int64_t row,
    int count,
    int64_t k0,
    int64_t k1,
    std::byte* out) {
  StripUnits units(m, out);
  for (int first = 0; first < kStrip; first += kLanes) {
    int n = int(min_of(kLanes, count - first));
    n = n < 0 ? 0 : n;
    auto* scale = reinterpret_cast<float*>(out) + first;
    float* bias = scale + kStrip;
    int64_t pitch = units.pitch / 4;
    m.dtype == DType::f16
        ? transpose_scales<F16>(m, row + first, n, k0, k1, pitch, scale, bias)
        : transpose_scales<BF16>(m, row + first, n, k0, k1, pitch, scale, bias);
    m.quant.bits == 4 ? nibble_units(m, row + first, n, k0, k1, units)
                      : coded_units(m, row + first, n, k0, k1, units);
    units.units += kLanes * 4;
  }
}

// sum = the 16-bit sums of half a block's products.
template <int kX>
inline void half_block_sums(
    I (&sum)[kX][2],
    const std::byte* units,
    const std::byte* tile,
    int64_t step) {
#pragma GCC unroll 4
  for (int64_t u = 0; u < kHalfUnits; ++u) {
    I w0 = i_load(units), w1 = i_load(units + kLanes * 4);
#pragma GCC unroll 12
    for (int i = 0; i < kX; ++i) {
      I x = i_set(load<int32_t>(tile + i * 4));
      I p0 = i_byte_pairs(w0, x), p1 = i_byte_pairs(w1, x);
      sum[i][0] = u == 0 ? p0 : i_add16(sum[i][0], p0);
      sum[i][1] = u == 0 ? p1 : i_add16(sum[i][1], p1);
    }
    units += kStrip * 4;
    tile += step;
  }
}

// Where the parts of a tile are for rows [first, first + kX), from a strip's
// first column on.
struct ByteRows {
  const std::byte *units, *factors, *sums, *scales;
  int64_t step;  // bytes from unit to unit, half block to half block, ...

  // With the strip's units.
  void next_half(const std::byte** strip) {
    *strip += kHalfUnits * kStrip * 4;
    units += kHalfUnits * step;
    factors += step;
  }
};

// acc = the groups' sums, in multiples of the rows' scales.
template <int kX>
inline void group_sums(
    F (&acc)[kX][2],
    const std::byte*& strip,
    int64_t groups,
    int64_t halves,
    ByteRows& x) {
#pragma GCC unroll 12
  for (int i = 0; i < kX; ++i) {
    acc[i][0] = acc[i][1] = f_zero();
  }
  for (int64_t g = 0; g < groups; ++g) {
    const std::byte* scales = strip;
    strip += 2 * kStrip * 4;
    I dot[kX][2], sum[kX][2];
    auto times_factor = [&](int i, I* d) {
      I m = i_set(load<int32_t>(x.factors + i * 4));
      d[0] = i_pairs16(sum[i][0], m);
      d[1] = i_pairs16(sum[i][1], m);
    };
    half_block_sums<kX>(sum, strip, x.units, x.step);
#pragma GCC unroll 12
    for (int i = 0; i < kX; ++i) {
      times_factor(i, dot[i]);
    }
    for (int64_t h = 2; h < halves; ++h) {
      x.next_half(&strip);
      half_block_sums<kX>(sum, strip, x.units, x.step);
#pragma GCC unroll 12
      for (int i = 0; i < kX; ++i) {
        I d[2];
        times_factor(i, d);
        dot[i][0] = i_add(dot[i][0], d[0]);
        dot[i][1] = i_add(dot[i][1], d[1]);
      }
    }
    x.next_half(&strip);
    half_block_sums<kX>(sum, strip, x.units, x.step);
#pragma GCC unroll 12
    for (int i = 0; i < kX; ++i) {
      F row_sum = broadcast(x.sums + i * 4);
      I d[2];
      times_factor(i, d);
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        F whole = i_to_f(i_add(d[v], dot[i][v]));
        const std::byte* scale = scales + v * kLanes * 4;
        acc[i][v] = f_fma(whole, f_load(scale), acc[i][v]);
        acc[i][v] = f_fma(row_sum, f_load(scale + kStrip * 4), acc[i][v]);
      }
    }
    x.next_half(&strip);
    x.sums += x.step;
  }
}

#if !defined(__AVX512F__)
inline void group_sums(
    F (&acc)[6][2],
    const std::byte*& strip,
    int64_t groups,
    int64_t halves,
    ByteRows& x) {
  SixRowSums sums;
  for (int i = 0; i < 6; ++i) {
    sums.acc[i][0] = sums.acc[i][1] = f_zero();
  }
  for (int64_t g = 0; g < groups; ++g) {
    const std::byte* scales = strip;
    strip += 2 * kStrip * 4;
    half_block_six_rows<false>(&sums, strip, x.units, x.factors, x.step);
    for (int64_t h = 2; h < halves; ++h) {
      x.next_half(&strip);
      half_block_six_rows<true>(&sums, strip, x.units, x.factors, x.step);
    }
    x.next_half(&strip);
    last_half_six_rows(
        &sums, strip, x.units, x.factors, x.sums, scales, x.step);
    x.next_half(&strip);
    x.sums += x.step;
  }
  for (int i = 0; i < 6; ++i) {
    acc[i][0] = sums.acc[i][0];
    acc[i][1] = sums.acc[i][1];
  }
}
#endif

// `halves`: half blocks in a group.
template <int kX>
void byte_strip(
    const std::byte* strip,
    int64_t groups,
    int64_t halves,
    ByteRows x,
    bool add,
    int outputs,
    float* y,
    int64_t ldy) {
  F acc[kX][2];
  group_sums(acc, strip, groups, halves, x);
  F total[kX][2];
  start_strip<kX>(total, add, outputs, y, ldy);
#pragma GCC unroll 12
  for (int i = 0; i < kX; ++i) {
    F scale = broadcast(x.scales + i * 4);
    total[i][0] = f_fma(scale, acc[i][0], total[i][0]);
    total[i][1] = f_fma(scale, acc[i][1], total[i][1]);
  }
  store_strip<kX>(total, outputs, y, ldy);
}

void byte_panel_multiply(
    const Matrix& m,
    const std::byte* panel,
    int panel_count,
    int64_t k0,
    int64_t k1,
    const std::byte* tile,
    int rows,
    float* y,
    int64_t ldy) {
  ByteTile at(m, rows);
  int64_t step = int64_t(rows) * 4;
  int64_t group = m.quant.group_size;
  int64_t halves = group / (kByteBlock / 2);
  int64_t bytes = byte_strip_bytes(m, k1 - k0);
  for (int o = 0; o < panel_count; o += kStrip, panel += bytes) {
    for_row_groups<kIntegerRows>(rows, [&]<int kX>(int first) {
      const std::byte* from = tile + first * 4;
      byte_strip<kX>(
          panel,
          (k1 - k0) / group,
          halves,
          {from + k0 / 4 * step,
           from + at.factors + k0 / (kByteBlock / 2) * step,
           from + at.sums + k0 / group * step,
           from + at.scales,
           step},
          k0 > 0,
          int(min_of(kStrip, panel_count - o)),
          y + o + first * ldy,
          ldy);
    });
  }
}
