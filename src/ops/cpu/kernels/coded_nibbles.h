// Codes of 4 bits times 8-bit activations, for coded_lanes.h and
// coded_strips.h. Included inside an anonymous namespace.
//
// Eight columns of an activation row, those of a word of codes, share a scale
// t m: t is the row's, m an integer. An output is
//   y = t sum_group (s sum_eight m sum q e + b sum_eight m sum e)
// with integers e up to 127. The sums of a group are exact: those of eight
// columns fit 16 bits (8 * 15 * 127 < 2^15), so that one 16-bit dot multiplies
// the sums of two words with their m and adds them.

// The e of 32 columns: for each 16 of them the even ones and then the odd ones,
// four bytes a word; and their four m, 16 bits each.
struct NibbleBlock {
  __m256i bytes;
  int64_t factors;

  // Adds m e to the lanes of *sum.
  NibbleBlock(const float* x, F steps, __m256i* sum) {
    // m of words 0 1 0 1 2 3 2 3, as their parts lie in `bytes`, then in turn.
    const I firsts = _mm512_setr_epi32(
        0, 8, 0, 8, 16, 24, 16, 24, 0, 8, 16, 24, 0, 8, 16, 24);
    const I first_two =
        _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m256i even_odd = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
    F v0 = f_load(x), v1 = f_load(x + kLanes);
    I top = _mm512_permutex2var_epi32(
        largest_of_eights(v0), firsts, largest_of_eights(v1));
    F m = f_max(round_up(f_mul(i_as_f(top), steps)), f_set(1));
    F inverse = f_div(f_mul(f_set(127), steps), m);
    auto integers = [&](F v, I words) {
      return _mm512_cvtsepi32_epi8(f_to_i(f_mul(v, f_permute(inverse, words))));
    };
    bytes = _mm256_shuffle_epi8(
        _mm256_set_m128i(
            integers(v1, i_add(first_two, i_set(4))), integers(v0, first_two)),
        even_odd);
    I wide = f_to_i(m);
    __m128i in_turn = _mm512_extracti32x4_epi32(wide, 2);
    factors = _mm_cvtsi128_si64(_mm_packs_epi32(in_turn, in_turn));
    __m256i sums =
        _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), bytes);
    *sum = _mm256_add_epi32(
        *sum, _mm256_mullo_epi32(sums, _mm512_castsi512_si256(wide)));
  }

  // Bits of floats that are not negative grow with them; NaN is above all.
  static I absolute_bits(F v) {
    return i_and(f_as_i(v), i_set(0x7fffffff));
  }
  static I largest_of_eights(F x) {
    I v = absolute_bits(x);
    v = _mm512_max_epi32(v, _mm512_shuffle_i32x4(v, v, 0xb1));
    v = _mm512_max_epi32(v, _mm512_shuffle_epi32(v, _MM_PERM_BADC));
    return _mm512_max_epi32(v, _mm512_shuffle_epi32(v, _MM_PERM_CDAB));
  }
  static F round_up(F v) {
    return _mm512_roundscale_ps(v, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
  }
  static RowScale row_scale(const float* x, int64_t count) {
    I a = i_zero(), b = i_zero();
    for (int64_t k = 0; k < count; k += 32) {
      a = _mm512_max_epi32(a, absolute_bits(f_load(x + k)));
      b = _mm512_max_epi32(b, absolute_bits(f_load(x + k + kLanes)));
    }
    return RowScale(
        from_bits(uint32_t(_mm512_reduce_max_epi32(_mm512_max_epi32(a, b)))));
  }
};

// Calls f(column, block) for each 32 columns and g(group, sum m e) after a
// group's; gives the row's scale.
template <typename Block, typename Group>
inline float nibble_blocks(const Matrix& m, const float* x, Block f, Group g) {
  RowScale scale = NibbleBlock::row_scale(x, m.in);
  F steps = f_set(scale.steps);
  int64_t group = m.quant.group_size, index = 0;
  for (int64_t k = 0; k < m.in; ++index) {
    __m256i sum = _mm256_setzero_si256();
    for (int64_t end = k + group; k < end; k += 32) {
      f(k, NibbleBlock(x + k, steps, &sum));
    }
    __m128i s = _mm_add_epi32(
        _mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    g(index, float(_mm_cvtsi128_si32(s)));
  }
  return scale.scale;
}

struct NibbleCodes {
  static constexpr int kBits = 4;
  // The most rows of the kernel with lanes along the columns (measured).
  static constexpr int kLaneRows = 8;

  // Of a row's t.
  static float row_scale(const std::byte* at) {
    return load<float>(at);
  }

  // ---- Lanes along the columns. For each vector of codes: the even columns'
  // integers, the odd ones', four m of 16 bits twice in each 128 bits, the sum
  // of the group of each lane. Then t.
  static constexpr int64_t kOdd = kLanes * 4, kFactors = 2 * kOdd,
                           kLaneSums = 3 * kOdd, kLaneBytes = 4 * kOdd;
  static size_t lane_row_bytes(const Matrix& m) {
    return size_t(lane_blocks(m) * kLaneBytes + kLanes * 4);
  }

  static void lane_pack_row(const Matrix& m, const float* x, std::byte* out) {
    constexpr int64_t kBlock = kLanes * 8;  // columns of a vector
    int64_t group = m.quant.group_size, blocks = lane_blocks(m);
    __builtin_memset(out + (blocks - 1) * kLaneBytes, 0, kLaneBytes);
    float scale = nibble_blocks(
        m,
        x,
        [&](int64_t column, const NibbleBlock& block) {
          std::byte* to =
              out + column / kBlock * kLaneBytes + column % kBlock / 2;
          auto store = [](std::byte* at, __m128i v) {
            _mm_storeu_si128(reinterpret_cast<__m128i*>(at), v);
          };
          __m128i a = _mm256_castsi256_si128(block.bytes);
          __m128i b = _mm256_extracti128_si256(block.bytes, 1);
          store(to, _mm_unpacklo_epi64(a, b));
          store(to + kOdd, _mm_unpackhi_epi64(a, b));
          store(to + kFactors, _mm_set1_epi64x(block.factors));
        },
        [&](int64_t g, float sum) {
          // The vector that ends the group.
          std::byte* block = out + ((g + 1) * group - 1) / kBlock * kLaneBytes;
          lane_store_group(m, g, sum, block + kLaneSums);
        });
    __builtin_memcpy(out + blocks * kLaneBytes, &scale, 4);
  }

  struct Weights {
    I even, odd;
  };
  static Weights take(I v) {
    const I mask = i_set(0x0f0f0f0f);
    return {i_and(v, mask), i_and(i_shr16<4>(v), mask)};
  }
  // The sums of four outputs, in each 128 bits.
  static I lane_sums(const Weights* w, const std::byte* x) {
    I even = i_load(x), odd = i_load(x + kOdd), factors = i_load(x + kFactors);
    // Of output r: words 0 and 1, words 2 and 3; then of output r + 1.
    auto two = [&](int r) {
      I a = i_zero(), b = i_zero();
      dot_bytes(a, w[r].even, even);
      dot_bytes(a, w[r].odd, odd);
      dot_bytes(b, w[r + 1].even, even);
      dot_bytes(b, w[r + 1].odd, odd);
      return i_as_f(i_pairs16(_mm512_packs_epi32(a, b), factors));
    };
    F a = two(0), b = two(2);
    return i_add(
        f_as_i(_mm512_shuffle_ps(a, b, 0x88)),
        f_as_i(_mm512_shuffle_ps(a, b, 0xdd)));
  }
  static F scaled(F sums, const std::byte*) {
    return sums;
  }

  // ---- Lanes along the outputs. A row: for each 16 columns the integers of
  // the even ones, then of the odd ones; two m of 16 bits for each 16 columns;
  // a sum for each group; t.
  static int64_t strip_sums_at(const Matrix& m) {
    return m.in + m.in / 4;
  }
  static int64_t strip_scale_at(const Matrix& m) {
    return strip_sums_at(m) + m.in / m.quant.group_size * 4;
  }
  static size_t strip_row_bytes(const Matrix& m) {
    return size_t(ceil_to(strip_scale_at(m) + 4, 64));
  }

  static void strip_pack_row(const Matrix& m, const float* x, std::byte* out) {
    std::byte* factors = out + m.in;
    std::byte* sums = out + strip_sums_at(m);
    float scale = nibble_blocks(
        m,
        x,
        [&](int64_t column, const NibbleBlock& block) {
          _mm256_storeu_si256(
              reinterpret_cast<__m256i*>(out + column), block.bytes);
          __builtin_memcpy(factors + column / 4, &block.factors, 8);
        },
        [&](int64_t g, float sum) { __builtin_memcpy(sums + g * 4, &sum, 4); });
    __builtin_memcpy(out + strip_scale_at(m), &scale, 4);
  }

  // `bytes` of 16 outputs' codes into half a panel: for each 16 columns two
  // vectors with 8 bytes of eight outputs, such that packing their sums brings
  // the outputs in order: 0 1 4 5 8 9 12 13, and the others.
  __attribute__((noinline)) static void strip_units(
      const std::byte* const* codes, int64_t bytes, int half, std::byte* out) {
    constexpr int64_t kVector = kLanes * 4, kUnit = 4 * kVector;
    out += half * 2 * kVector;
    for (int64_t at = 0; at < bytes; at += kVector, out += 8 * kUnit) {
      int64_t units = min_of(kVector, bytes - at) / 8;  // an even number
      auto mask = __mmask8((1u << units) - 1);
#pragma GCC unroll 2
      for (int part = 0; part < 2; ++part) {
        I low[4], high[4];  // even units, odd ones
#pragma GCC unroll 4
        for (int l = 0; l < 4; ++l) {
          const std::byte* const* two = codes + 4 * l + 2 * part;
          I a = _mm512_maskz_loadu_epi64(mask, two[0] + at);
          I b = _mm512_maskz_loadu_epi64(mask, two[1] + at);
          low[l] = _mm512_unpacklo_epi64(a, b);
          high[l] = _mm512_unpackhi_epi64(a, b);
        }
        transpose_quarters(low);
        transpose_quarters(high);
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
          if (2 * j < units) {
            i_store(out + 2 * j * kUnit + part * kVector, low[j]);
            i_store(out + (2 * j + 1) * kUnit + part * kVector, high[j]);
          }
        }
      }
    }
  }

  // Transposes the 4 x 4 quarters of vectors.
  static void transpose_quarters(I (&v)[4]) {
    I t0 = _mm512_shuffle_i32x4(v[0], v[1], 0x44);
    I t1 = _mm512_shuffle_i32x4(v[0], v[1], 0xee);
    I t2 = _mm512_shuffle_i32x4(v[2], v[3], 0x44);
    I t3 = _mm512_shuffle_i32x4(v[2], v[3], 0xee);
    v[0] = _mm512_shuffle_i32x4(t0, t2, 0x88);
    v[1] = _mm512_shuffle_i32x4(t0, t2, 0xdd);
    v[2] = _mm512_shuffle_i32x4(t1, t3, 0x88);
    v[3] = _mm512_shuffle_i32x4(t1, t3, 0xdd);
  }

  // The dots of a group that begins at `column`.
  template <int kX>
  __attribute__((always_inline)) static void strip_dots(
      const Matrix& m,
      const std::byte* units,
      const std::byte* const* row,
      int64_t column,
      int64_t group,
      I (&dot)[kX][2]) {
#pragma GCC unroll 4
    for (int i = 0; i < kX; ++i) {
      dot[i][0] = dot[i][1] = i_zero();
    }
#pragma GCC unroll 2
    for (int64_t u = 0; u < group / 16; ++u, column += 16) {
      Weights w[4];
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        w[j] = take(i_load(units + j * kLanes * 4));
      }
      units += kStripOutputs * 8;
#pragma GCC unroll 4
      for (int i = 0; i < kX; ++i) {
        I even = _mm512_set1_epi64(load<int64_t>(row[i] + column));
        I odd = _mm512_set1_epi64(load<int64_t>(row[i] + column + 8));
        I factors = i_set(load<int32_t>(row[i] + m.in + column / 4));
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) {
          I a = i_zero(), b = i_zero();
          dot_bytes(a, w[2 * h].even, even);
          dot_bytes(b, w[2 * h + 1].even, even);
          dot_bytes(a, w[2 * h].odd, odd);
          dot_bytes(b, w[2 * h + 1].odd, odd);
          dot_pairs(dot[i][h], _mm512_packs_epi32(a, b), factors);
        }
      }
    }
  }
  // acc += two products of each lane; see dot_bytes.
  static void dot_pairs(I& acc, I sums, I factors) {
    asm("vpdpwssd %2, %1, %0" : "+v"(acc) : "v"(sums), "vm"(factors));
  }
  static F strip_scaled(const Matrix&, F dot, const std::byte*, int64_t) {
    return dot;
  }
};
