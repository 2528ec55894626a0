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

#include "ops/cpu/kernels/row_scale.h"
#if defined(__AVX512F__)
#include "ops/cpu/kernels/transpose_eight.h"
#endif

constexpr int kByteOutputs = kStrip;  // of a strip
constexpr int64_t kByteBlock = 32;
constexpr int64_t kBlockUnits = kByteBlock / 4, kHalfUnits = kBlockUnits / 2;
// 8 products of codes of up to 5 bits fit 16 bits: 8 * 31 * 127 < 2^15.
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

// The largest of each eight columns of a block: 128-bit lane l holds, twice
// each, those of columns 4 l + [0, 4) of words 0 and 1, then of words 2 and 3.
inline __m256 largest_of_eights(const float* x) {
  __m256i first = _mm256_max_epi32(absolute_bits(x), absolute_bits(x + 8));
  __m256i last = _mm256_max_epi32(absolute_bits(x + 16), absolute_bits(x + 24));
  __m256i v = _mm256_max_epi32(
      _mm256_unpacklo_epi64(first, last), _mm256_unpackhi_epi64(first, last));
  return _mm256_castsi256_ps(
      _mm256_max_epi32(v, _mm256_shuffle_epi32(v, 0xb1)));
}

// A block of a row: its units, both pairs of factors, and sums of m e that are
// added to *sum.
inline __m256i block_units(
    const float* x, float steps, uint64_t* factors, __m256i* sum) {
  __m256 m = _mm256_max_ps(
      _mm256_round_ps(
          _mm256_mul_ps(largest_of_eights(x), _mm256_set1_ps(steps)),
          _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC),
      _mm256_set1_ps(1));
  __m256 inverse = _mm256_div_ps(_mm256_set1_ps(127 * steps), m);
  __m256 first = _mm256_permute_ps(inverse, 0x00);
  __m256 last = _mm256_permute_ps(inverse, 0xaa);
  auto integers = [&](int word, __m256 factor) {
    return _mm256_cvtps_epi32(
        _mm256_mul_ps(_mm256_loadu_ps(x + word * 8), factor));
  };
  __m256i low = _mm256_packs_epi32(integers(0, first), integers(1, first));
  __m256i high = _mm256_packs_epi32(integers(2, last), integers(3, last));

  __m256i wide = _mm256_cvtps_epi32(m);
  __m256i narrow = _mm256_packs_epi32(wide, wide);
  *sum = _mm256_add_epi32(
      *sum,
      _mm256_add_epi32(
          _mm256_madd_epi16(low, _mm256_shuffle_epi32(narrow, 0x00)),
          _mm256_madd_epi16(high, _mm256_shuffle_epi32(narrow, 0x55))));
  __m128i pairs = _mm_or_si128(
      _mm256_castsi256_si128(wide),
      _mm_slli_epi32(_mm256_extracti128_si256(wide, 1), 16));
  *factors = uint64_t(_mm_cvtsi128_si64(_mm_shuffle_epi32(pairs, 0x08)));

  // Bytes 4 w + i of 128-bit lane l: column 4 l + i of word w.
  __m256i bytes = _mm256_permutevar8x32_epi32(
      _mm256_packs_epi16(low, high), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
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
        uint64_t pairs;
        units[i] = block_units(x + i * ldx + k, steps[i], &pairs, sum + i);
        factors[i] = uint32_t(pairs);
        factors[rows + i] = uint32_t(pairs >> 32);
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

// Where the units of eight columns go, one after the other: those of the even
// columns, and kStrip lanes later those of the odd ones.
struct StripUnits {
  StripUnits(const Matrix& m, std::byte* strip)
      : group(m.quant.group_size / 8), left(group), at(strip + kMeta) {}
  std::byte* next() {
    if (left == 0) {
      left = group;
      at += kMeta;
    }
    --left;
    std::byte* units = at;
    at += 2 * kStrip * 4;
    return units;
  }
  static constexpr int64_t kMeta = 2 * kStrip * 4;  // scales and biases
  int64_t group, left;
  std::byte* at;
};

// The units of kLanes outputs' columns [k0, k1), whole groups. Those of outputs
// past `count` are zero. Words of eight codes are transposed before they are
// taken apart.
void nibble_units(
    const Matrix& m,
    int64_t row,
    int count,
    int64_t k0,
    int64_t k1,
    StripUnits to) {
  const std::byte* codes[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    codes[i] =
        m.weight + size_t(row + (i < count ? i : 0)) * m.weight_stride + k0 / 2;
  }
  int64_t words = (k1 - k0) / 8;
  const I low = i_set(0x0f0f0f0f);
  for (int64_t word = 0; word < words; word += kLanes) {
    int64_t n = min_of(kLanes, words - word);
    I r[kLanes];
    if (n == kLanes && count == kLanes) {
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        r[i] = i_load(codes[i] + word * 4);
      }
    } else {
      for (int i = 0; i < kLanes; ++i) {
        r[i] = i < count ? i_load_part(codes[i] + word * 4, n * 4) : i_zero();
      }
    }
    transpose(r);
    for (int64_t j = 0; j < n; ++j) {
      std::byte* out = to.next();
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
  const std::byte* codes =
      m.weight + size_t(row) * m.weight_stride + k0 * bits / 8;
  for (int64_t w = 0; w < (k1 - k0) / 8; ++w, codes += bits) {
    std::byte* out = to.next();
    for (int i = 0; i < kLanes; ++i) {
      uint64_t word = 0;
      if (i < count) {
        __builtin_memcpy(
            &word, codes + size_t(i) * m.weight_stride, size_t(bits));
      }
      for (int c = 0; c < 8; ++c, word >>= bits) {
        out[c % 2 * kStrip * 4 + i * 4 + c / 2] = std::byte(word & mask);
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
  int64_t pitch = 2 * kStrip + m.quant.group_size * kStrip / 4;  // floats
  for (int first = 0; first < kStrip; first += kLanes) {
    int n = count > first ? int(min_of(kLanes, count - first)) : 0;
    int64_t from = row + (n > 0 ? first : 0);
    auto* scale = reinterpret_cast<float*>(out) + first;
    StripUnits units(m, out + first * 4);
    m.dtype == DType::f16
        ? transpose_scales<F16>(
              m, from, n, k0, k1, pitch, scale, scale + kStrip)
        : transpose_scales<BF16>(
              m, from, n, k0, k1, pitch, scale, scale + kStrip);
    m.quant.bits == 4 ? nibble_units(m, from, n, k0, k1, units)
                      : coded_units(m, from, n, k0, k1, units);
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
    for_row_groups<kByteRows>(rows, [&]<int kX>(int first) {
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
