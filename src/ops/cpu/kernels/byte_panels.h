// Prefill products of codes of 4 or 8 bits with 8-bit activations, by dots of
// bytes. Included inside an anonymous namespace, only where there are VNNI and
// BF16, after panel_kernels.h.
//
// Weights are centered, w = s (q - c) + b with c half the codes' range, so that
// what bf16 loses of b and of sums of activations is small beside the error of
// the activations. A group of activations x = t e (e: integers up to 127) adds
//   s (t sum (q - c) e) + b (t sum e)
// to an output. The first sum is exact and starts at -c sum e. Groups go in
// pairs, side by side in the lanes, so that one dot of bf16 pairs adds the
// first products of both and another one the second products:
//   strip: [pair]{ [unit][output][half] of 4 codes, [output] both s,
//                  [output] both b }
//   block of up to kIntegerRows activation rows:
//          [pair]{ [unit][row][half] of 4 integers, [row][half] t,
//                  [row][half] -c sum e, [row] both t sum e }
// A pair's halves are groups of 32 or 64 columns; of 64, the last one without a
// partner is a pair of 32 columns each. Units take the columns of a word of
// 4-bit codes in the order in which the word comes apart: even ones, odd ones.

constexpr int kByteOutputs = kLanes;  // of a strip
constexpr int64_t kByteMeta = 20;     // bytes a pair and activation row
constexpr int64_t kByteScales = 2 * kLanes * 4;
// Stores of whole vectors reach past a block's end.
constexpr int64_t kByteSlack = kLanes * 4;

// Columns whose activations share a scale: 8 bits want short groups.
inline int64_t activation_group(const Matrix& m) {
  return min_of(m.quant.group_size, 64);
}

inline int code_center(const Matrix& m) {
  return 1 << (m.quant.bits - 1);
}

// The pairs that `columns` columns make: `wide` ones of two groups of 64, then
// `narrow` ones of two times 32.
struct BytePairs {
  int64_t wide = 0, narrow = 0;
  BytePairs(const Matrix& m, int64_t columns) {
    if (m.quant.group_size == 32) {
      narrow = (columns + 63) / 64;
    } else {
      wide = columns / 128;
      narrow = columns % 128 / 64;
    }
  }
  int64_t count() const {
    return wide + narrow;
  }
  int64_t units() const {
    return wide * 16 + narrow * 8;
  }
};

inline int64_t byte_row_bytes(const Matrix& m, int64_t columns) {
  BytePairs pairs(m, columns);
  return pairs.units() * 8 + pairs.count() * kByteMeta;
}

// Where the block begins whose first row is `row` of a tile.
inline int64_t byte_block_at(const Matrix& m, int row) {
  return row * (byte_row_bytes(m, m.in) + kByteSlack);
}

inline size_t byte_tile_bytes(const Matrix& m, int rows) {
  return size_t(ceil_to(byte_block_at(m, rows), 64));
}

inline int64_t byte_strip_bytes(const Matrix& m, int64_t columns) {
  BytePairs pairs(m, columns);
  return pairs.units() * 2 * kLanes * 4 + pairs.count() * kByteScales;
}

// Lane i of the result: the largest lane of v[i].
inline F largest_lanes(const F* v) {
  F t[8], u[4];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    t[i] = f_max(
        _mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]),
        _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    __m512d a = _mm512_castps_pd(t[2 * i]), b = _mm512_castps_pd(t[2 * i + 1]);
    u[i] = f_max(
        _mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
        _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  }
  auto halves = [](F a, F b) {
    return f_max(
        _mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  };
  return halves(halves(u[0], u[1]), halves(u[2], u[3]));
}

// bf16 in the low half of each lane.
inline I low_bf16(F v) {
  return _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(v));
}

// 64 columns of up to kLanes activation rows as integers: a vector a unit of 4
// columns, lanes along the rows. halves: 32 columns each have a scale.
struct ByteColumns {
  I units[kLanes];
  F scale[2];

  ByteColumns(
      const float* x,
      int64_t ldx,
      int rows,
      int64_t columns,
      bool halves,
      bool even_odd) {
    const I natural =
        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const I order = _mm512_broadcast_i32x4(
        _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
    F most[2][kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      most[0][i] = most[1][i] = f_zero();
      if (i < rows) {
        const float* row = x + i * ldx;
        F a = f_max(f_abs(f_load(row)), f_abs(f_load(row + 16)));
        F b = f_zero();
        if (columns == 64) {
          b = f_max(f_abs(f_load(row + 32)), f_abs(f_load(row + 48)));
        }
        most[0][i] = halves ? a : f_max(a, b);
        most[1][i] = b;
      }
    }
    alignas(64) float inverse[2][kLanes];
    for (int h = 0; h < 2; ++h) {
      if (h == 1 && !halves) {
        scale[1] = scale[0];
        f_store(inverse[1], f_load(inverse[0]));
        break;
      }
      F top = largest_lanes(most[h]);
      __mmask16 some = _mm512_cmp_ps_mask(top, f_zero(), _CMP_GT_OQ);
      f_store(inverse[h], _mm512_maskz_div_ps(some, f_set(127), top));
      scale[h] = f_div(top, f_set(127));
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      units[i] = i_zero();
      if (i < rows) {
        const float* row = x + i * ldx;
        F first = f_set(inverse[0][i]), last = f_set(inverse[1][i]);
        I c = i_zero(), d = i_zero();
        if (columns == 64) {
          c = f_to_i(f_mul(f_load(row + 32), last));
          d = f_to_i(f_mul(f_load(row + 48), last));
        }
        I bytes = _mm512_packs_epi16(
            _mm512_packs_epi32(
                f_to_i(f_mul(f_load(row), first)),
                f_to_i(f_mul(f_load(row + 16), first))),
            _mm512_packs_epi32(c, d));
        bytes = _mm512_permutexvar_epi32(natural, bytes);
        units[i] = even_odd ? _mm512_shuffle_epi8(bytes, order) : bytes;
      }
    }
    transpose(units);
  }
};

void byte_tile_pack(
    const Matrix& m, const float* x, int64_t ldx, int rows, std::byte* out) {
  static_assert(kTileRows <= 2 * kIntegerRows && kIntegerRows <= 8);
  bool even_odd = m.quant.bits == 4;
  // Row i of both halves side by side, from the first row of each block that
  // for_row_groups makes.
  int count[2] = {rows > kIntegerRows ? rows / 2 : rows, 0};
  count[1] = rows - count[0];
  const I pick =
      _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const I index[2] = {pick, i_add(pick, i_set(count[0]))};
  std::byte* to[2] = {out, out + byte_block_at(m, count[0])};

  auto put = [&](I first, I last) {
    for (int b = 0; b < 2 && count[b] > 0; ++b) {
      i_store(to[b], _mm512_permutex2var_epi32(first, index[b], last));
      to[b] += count[b] * 8;
    }
  };
  // Adds a pair: units [a, a + n) and scale `s` of each half.
  auto put_pair = [&](const I* first, const I* last, int n, F s0, F s1) {
    I total[2] = {i_zero(), i_zero()};
    const I ones = i_set(0x01010101);
#pragma GCC unroll 8
    for (int u = 0; u < n; ++u) {
      total[0] = _mm512_dpbusd_epi32(total[0], ones, first[u]);
      total[1] = _mm512_dpbusd_epi32(total[1], ones, last[u]);
      put(first[u], last[u]);
    }
    const I start = i_set(-code_center(m));
    put(f_as_i(s0), f_as_i(s1));
    put(_mm512_mullo_epi32(total[0], start),
        _mm512_mullo_epi32(total[1], start));
    I sums = i_or(
        low_bf16(f_mul(s0, i_to_f(total[0]))),
        i_shl32<16>(low_bf16(f_mul(s1, i_to_f(total[1])))));
    const I rows_of[2] = {
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
        i_set(count[0])};
    for (int b = 0; b < 2 && count[b] > 0; ++b) {
      i_store(
          to[b],
          _mm512_permutexvar_epi32(
              b == 0 ? rows_of[0] : i_add(rows_of[0], rows_of[1]), sums));
      to[b] += count[b] * 4;
    }
  };

  bool halves = m.quant.group_size == 32;
  BytePairs pairs(m, m.in);
  int64_t k = 0;
  for (int64_t p = 0; p < pairs.wide; ++p, k += 128) {
    ByteColumns a(x + k, ldx, rows, 64, false, even_odd);
    ByteColumns b(x + k + 64, ldx, rows, 64, false, even_odd);
    put_pair(a.units, b.units, 16, a.scale[0], b.scale[0]);
  }
  for (; k < m.in; k += 64) {
    ByteColumns a(x + k, ldx, rows, min_of(64, m.in - k), halves, even_odd);
    put_pair(a.units, a.units + 8, 8, a.scale[0], a.scale[1]);
  }
}

// 8 x 8 transpose of 64-bit elements.
inline void transpose_pairs(I* r) {
  I t[8];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm512_unpacklo_epi64(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi64(r[2 * i], r[2 * i + 1]);
  }
  // t[2 i + j]: elements 2 l + j of rows 2 i, 2 i + 1 in 128-bit lane l
#pragma GCC unroll 2
  for (int j = 0; j < 2; ++j) {
    I a = _mm512_shuffle_i64x2(t[j], t[2 + j], 0x88);
    I b = _mm512_shuffle_i64x2(t[j], t[2 + j], 0xdd);
    I c = _mm512_shuffle_i64x2(t[4 + j], t[6 + j], 0x88);
    I d = _mm512_shuffle_i64x2(t[4 + j], t[6 + j], 0xdd);
    r[j] = _mm512_shuffle_i64x2(a, c, 0x88);
    r[4 + j] = _mm512_shuffle_i64x2(a, c, 0xdd);
    r[2 + j] = _mm512_shuffle_i64x2(b, d, 0x88);
    r[6 + j] = _mm512_shuffle_i64x2(b, d, 0xdd);
  }
}

// Columns [k0, k1) of kByteOutputs outputs; outputs from `count` on repeat the
// last one.
template <int kBits, typename T>
void byte_strip_pack(
    const Matrix& m,
    int64_t row,
    int count,
    int64_t k0,
    int64_t k1,
    std::byte* out) {
  constexpr int64_t kMostGroups = kPanelColumns / 32;
  const std::byte *codes[kLanes], *scales_of[kLanes], *biases_of[kLanes];
  for (int r = 0; r < kLanes; ++r) {
    size_t at = size_t(row + min_of(r, count - 1));
    codes[r] = m.weight + at * m.weight_stride + k0 * kBits / 8;
    scales_of[r] = m.scales + at * m.scale_stride;
    biases_of[r] = m.biases + at * m.scale_stride;
  }
  const I words_of_8 =
      _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
  const I words_of_4 =
      _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
  // Up to 8 words from byte `first` and from `last` on, as far as `end`.
  int64_t end = (k1 - k0) * kBits / 8;
  auto mask = [&](int64_t at) {
    int64_t words = min_of(8, (end - at) / 4);
    return __mmask8(words > 0 ? (1u << words) - 1 : 0);
  };
  auto transposed = [&](int64_t first, int64_t last, I index, I* v) {
    __mmask8 low = mask(first), high = mask(last);
    for (int half = 0; half < 2; ++half) {
      I* r = v + half * 8;
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        const std::byte* from = codes[half * 8 + i];
        r[i] = _mm512_permutexvar_epi32(
            index,
            _mm512_inserti64x4(
                _mm512_castsi256_si512(
                    _mm256_maskz_loadu_epi32(low, from + first)),
                _mm256_maskz_loadu_epi32(high, from + last),
                1));
      }
      transpose_pairs(r);
    }
  };
  auto put = [&](const I* v, int n) {
#pragma GCC unroll 8
    for (int w = 0; w < n; ++w) {
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        I word = v[half * 8 + w];
        if constexpr (kBits == 8) {
          i_store(out + half * kLanes * 4, word);
        } else {
          const I low = i_set(0x0f0f0f0f);
          i_store(out + half * kLanes * 4, i_and(word, low));
          i_store(out + (2 + half) * kLanes * 4, i_and(i_shr16<4>(word), low));
        }
      }
      out += 2 * kLanes * 4 * (kBits == 4 ? 2 : 1);
    }
  };

  alignas(64) float scales[kMostGroups * kLanes], biases[kMostGroups * kLanes];
  int64_t first_group = k0 / m.quant.group_size;
  int64_t groups = (k1 - k0) / m.quant.group_size;
  transpose_halves<T>(scales_of, first_group * 2, groups, kLanes, scales);
  transpose_halves<T>(biases_of, first_group * 2, groups, kLanes, biases);
  auto put_scales = [&](int64_t column0, int64_t column1) {
    auto both = [&](int64_t column, F* scale, F* bias) {
      int64_t at = column / m.quant.group_size * kLanes;
      *scale = f_load(scales + at);
      *bias = f_fma(*scale, f_set(float(code_center(m))), f_load(biases + at));
    };
    F scale[2], bias[2] = {f_zero(), f_zero()};
    scale[1] = f_zero();
    both(column0, &scale[0], &bias[0]);
    if (column1 < k1 - k0) {
      both(column1, &scale[1], &bias[1]);
    }
    auto pair = [](const F* v) {
      return i_or(low_bf16(v[0]), i_shl32<16>(low_bf16(v[1])));
    };
    i_store(out, pair(scale));
    i_store(out + kLanes * 4, pair(bias));
    out += kByteScales;
  };

  BytePairs pairs(m, k1 - k0);
  I v[kLanes];
  int64_t k = 0;
  for (int64_t p = 0; p < pairs.wide; ++p, k += 128) {
    int64_t first = k * kBits / 8, last = (k + 64) * kBits / 8;
    for (int w = 0; w < 2 * kBits; w += 8) {
      transposed(first + w * 4, last + w * 4, words_of_8, v);
      put(v, 8);
    }
    put_scales(k, k + 64);
  }
  for (; k < k1 - k0; k += kBits == 4 ? 128 : 64) {
    int64_t first = k * kBits / 8;
    transposed(first, first + 32, kBits == 4 ? words_of_4 : words_of_8, v);
    if constexpr (kBits == 8) {
      put(v, 8);
      put_scales(k, k + 32);
      continue;
    }
    put(v, 4);
    put_scales(k, k + 32);
    if (k + 64 < k1 - k0) {
#pragma GCC unroll 8
      for (int w = 0; w < 4; ++w) {
        v[w] = v[w + 4];
        v[8 + w] = v[12 + w];
      }
      put(v, 4);
      put_scales(k + 64, k + 96);
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
  bool half = m.dtype == DType::f16;
  auto run = [&]<int kBits>() {
    half ? byte_strip_pack<kBits, F16>(m, row, count, k0, k1, out)
         : byte_strip_pack<kBits, BF16>(m, row, count, k0, k1, out);
  };
  m.quant.bits == 4 ? run.template operator()<4>()
                    : run.template operator()<8>();
}

// Adds `count` pairs of kUnits units a half to the sums of kX rows.
template <int kUnits, int kX>
inline void add_byte_pairs(
    F (&acc)[kX],
    const std::byte*& strip,
    const std::byte*& block,
    int64_t count) {
  constexpr int64_t kRow = kX * 8;  // bytes of a unit
  for (int64_t p = 0; p < count; ++p) {
    const std::byte* meta = block + kUnits * kRow;
    I dot[kX][2];
#pragma GCC unroll 8
    for (int i = 0; i < kX; ++i) {
      dot[i][0] = dot[i][1] =
          _mm512_set1_epi64(load<int64_t>(meta + kRow + i * 8));
    }
#pragma GCC unroll 16
    for (int u = 0; u < kUnits; ++u) {
      I w0 = i_load(strip), w1 = i_load(strip + kLanes * 4);
#pragma GCC unroll 8
      for (int i = 0; i < kX; ++i) {
        I x = _mm512_set1_epi64(load<int64_t>(block + i * 8));
        dot_bytes(dot[i][0], w0, x);
        dot_bytes(dot[i][1], w1, x);
      }
      strip += 2 * kLanes * 4;
      block += kRow;
    }
    __m512bh scales = (__m512bh)i_load(strip);
    __m512bh biases = (__m512bh)i_load(strip + kLanes * 4);
#pragma GCC unroll 8
    for (int i = 0; i < kX; ++i) {
      F t = i_as_f(_mm512_set1_epi64(load<int64_t>(meta + i * 8)));
      __m512bh sums = (__m512bh)i_set(load<int32_t>(meta + 2 * kRow + i * 4));
      __m512bh dots = _mm512_cvtne2ps_pbh(
          f_mul(i_to_f(dot[i][1]), t), f_mul(i_to_f(dot[i][0]), t));
      acc[i] = _mm512_dpbf16_ps(acc[i], dots, scales);
      acc[i] = _mm512_dpbf16_ps(acc[i], biases, sums);
    }
    strip += kByteScales;
    block += kX * kByteMeta;
  }
}

template <int kX>
void byte_strip(
    const std::byte* strip,
    const std::byte* block,
    BytePairs pairs,
    bool add,
    int outputs,
    float* y,
    int64_t ldy) {
  F acc[kX];
#pragma GCC unroll 8
  for (int i = 0; i < kX; ++i) {
    acc[i] = add ? f_load_part(y + i * ldy, outputs) : f_zero();
  }
  add_byte_pairs<16, kX>(acc, strip, block, pairs.wide);
  add_byte_pairs<8, kX>(acc, strip, block, pairs.narrow);
#pragma GCC unroll 8
  for (int i = 0; i < kX; ++i) {
    f_store_part(y + i * ldy, acc[i], outputs);
  }
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
  int64_t bytes = byte_strip_bytes(m, k1 - k0);
  int64_t skip = byte_row_bytes(m, k0);
  BytePairs pairs(m, k1 - k0);
  for (int o = 0; o < panel_count; o += kByteOutputs) {
    const std::byte* strip = panel + o / kByteOutputs * bytes;
    int outputs = int(min_of(kByteOutputs, panel_count - o));
    for_row_groups<kIntegerRows>(rows, [&]<int kX>(int first) {
      byte_strip<kX>(
          strip,
          tile + byte_block_at(m, first) + skip * kX,
          pairs,
          k0 > 0,
          outputs,
          y + first * ldy + o,
          ldy);
    });
  }
}
