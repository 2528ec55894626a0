// Products of many rows with codes of 4 or 8 bits, lanes along the outputs, and
// the choice between both kernels (coded_lanes.h). Included inside an
// anonymous namespace, only where there is VNNI.

constexpr int kStripOutputs = 2 * kLanes;
// Columns of a chunk: its panel (32 bytes a column and the scales) and some
// activation rows fit the first cache.
constexpr int64_t kStripColumns = 768;
// Groups of a chunk, in eights.
constexpr int64_t kStripGroups = kStripColumns / 32;
// Rows at once: the sums of both bytes and the results fill the registers.
constexpr int kStripRows = 4;
// Rows whose sums are kept from chunk to chunk.
constexpr int kStripBatch = 16;

// A packed activation row: for each 4 columns of 8-bit codes the words hi, lo;
// for each 8 columns of 4-bit codes hi, lo of the even ones, then of the odd
// ones. Then a scale and a sum for each group.
inline size_t strip_row_bytes(const Matrix& m) {
  int64_t groups = m.in / m.quant.group_size;
  return size_t(ceil_to(m.in * 2 + groups * 8, 64));
}

void strip_pack_row(const Matrix& m, const float* x, std::byte* out) {
  const I interleave =
      _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
  const I even_odd = _mm512_broadcast_i32x4(
      _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
  int64_t group = m.quant.group_size, groups = m.in / group;
  std::byte* scales = out + m.in * 2;
  std::byte* sums = scales + groups * 4;
  for (int64_t g = 0; g < groups; ++g) {
    GroupCodes codes(x + g * group, group);
    for (int64_t k = 0; k < group; k += 32) {
      I low = codes.low(k), high = codes.high(low);
      I bytes = _mm512_inserti64x4(
          _mm512_castsi256_si512(_mm512_cvtepi16_epi8(high)),
          _mm512_cvtepi16_epi8(low),
          1);
      if (m.quant.bits == 4) {
        bytes = _mm512_shuffle_epi8(bytes, even_odd);
      }
      i_store(
          out + (g * group + k) * 2,
          _mm512_permutexvar_epi32(interleave, bytes));
    }
    __builtin_memcpy(scales + g * 4, &codes.scale, 4);
    __builtin_memcpy(sums + g * 4, &codes.sum, 4);
  }
}

// Transposes the 4 x 4 words of each lane of 128 bits.
inline void transpose_lanes(const I* v, I* out) {
  I t0 = _mm512_unpacklo_epi32(v[0], v[1]);
  I t1 = _mm512_unpackhi_epi32(v[0], v[1]);
  I t2 = _mm512_unpacklo_epi32(v[2], v[3]);
  I t3 = _mm512_unpackhi_epi32(v[2], v[3]);
  out[0] = _mm512_unpacklo_epi64(t0, t2);
  out[1] = _mm512_unpackhi_epi64(t0, t2);
  out[2] = _mm512_unpacklo_epi64(t1, t3);
  out[3] = _mm512_unpackhi_epi64(t1, t3);
}

// Words [0, 4) of 16 rows, `bytes` of each readable, as four vectors whose
// lanes are the rows.
inline void transpose_four(
    const std::byte* const* rows, int64_t offset, int64_t bytes, I* out) {
  I v[4];
  __mmask8 mask = __mmask8((1u << (min_of(bytes, 16) / 4)) - 1);
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    auto get = [&](int r) {
      return _mm_maskz_loadu_epi32(mask, rows[r] + offset);
    };
    v[j] = _mm512_inserti32x4(
        _mm512_inserti32x4(
            _mm512_inserti32x4(_mm512_castsi128_si512(get(j)), get(4 + j), 1),
            get(8 + j),
            2),
        get(12 + j),
        3);
  }
  transpose_lanes(v, out);
}

// 16-bit floats of `groups` groups from byte `offset` of 16 rows:
// out[g * stride + row].
template <typename T>
inline void transpose_halves(
    const std::byte* const* rows,
    int64_t offset,
    int64_t groups,
    int64_t stride,
    float* out) {
  // The even halves of all words, then the odd ones.
  alignas(64) static constexpr uint16_t kHalves[32] = {
      0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30,
      1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
  auto store = [&](I words, int64_t g) {
    if constexpr (__is_same(T, BF16)) {
      f_store(out + g * stride, i_as_f(i_shl32<16>(words)));
      if (g + 1 < groups) {
        f_store(
            out + (g + 1) * stride,
            i_as_f(i_and(words, i_set(int(0xffff0000u)))));
      }
    } else {
      I split = _mm512_permutexvar_epi16(i_load(kHalves), words);
      f_store(out + g * stride, _mm512_cvtph_ps(_mm512_castsi512_si256(split)));
      if (g + 1 < groups) {
        f_store(
            out + (g + 1) * stride,
            _mm512_cvtph_ps(_mm512_extracti64x4_epi64(split, 1)));
      }
    }
  };
  for (int64_t g = 0; g < groups; g += 8) {
    int64_t left = groups - g;
    I words[4];
    if (left % 2 != 0 && left < 8) {
      // An odd number of halves: the last word would reach past the row.
      alignas(64) std::byte copy[kLanes][16] = {};
      const std::byte* copies[kLanes];
      for (int r = 0; r < kLanes; ++r) {
        __builtin_memcpy(copy[r], rows[r] + offset + g * 2, size_t(left) * 2);
        copies[r] = copy[r];
      }
      transpose_four(copies, 0, 16, words);
    } else {
      transpose_four(rows, offset + g * 2, left * 2, words);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      if (2 * j < left) {
        store(words[j], g + 2 * j);
      }
    }
  }
}

// Scales or biases, 16 bits each, of 8 groups from byte `at` of the 32 rows
// at `offsets`, `stride` bytes each: out[group][row]. Nothing past a row is
// read; groups past its end get any values.
template <typename T>
inline void strip_factors(
    const std::byte* base,
    const int64_t* offsets,
    int64_t at,
    int64_t stride,
    int64_t groups,
    float* out) {
  // Vector j has a row in each of its lanes of 128 bits, such that no value
  // crosses them on its way to the row's place.
  constexpr bool kShort = __is_same(T, BF16);
  auto row_of = [](int j, int lane) {
    return kShort ? j % 4 + 4 * lane + j / 4 * kLanes : j + 8 * lane;
  };
  I v[8];
  auto take = [&](auto get) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      auto row = [&](int lane) { return get(base + offsets[row_of(j, lane)]); };
      v[j] = _mm512_inserti32x4(_mm512_castsi128_si512(row(0)), row(1), 1);
      v[j] = _mm512_inserti32x4(v[j], row(2), 2);
      v[j] = _mm512_inserti32x4(v[j], row(3), 3);
    }
  };
  if (stride >= 16) {
    // What lies before the first group is moved out.
    alignas(16) static constexpr uint8_t kBytes[32] = {
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    int64_t from = min_of(at, stride - 16);
    I order = _mm512_broadcast_i32x4(_mm_loadu_si128(
        reinterpret_cast<const __m128i*>(kBytes + (at - from))));
    take([&](const std::byte* row) {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + from));
    });
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      v[j] = _mm512_shuffle_epi8(v[j], order);
    }
  } else {
    auto mask = __mmask8((1u << ((stride - at) / 2)) - 1);
    take([&](const std::byte* row) {
      return _mm_maskz_loadu_epi16(mask, row + at);
    });
  }
#pragma GCC unroll 2
  for (int part = 0; part < 2; ++part) {
    if (4 * part >= groups) {
      break;
    }
    // Groups 4 part .. 4 part + 3: of vectors 0 .. 3 and 4 .. 7, two each.
    I pairs[2][2];
#pragma GCC unroll 2
    for (int q = 0; q < 2; ++q) {
      const I* r = v + 4 * q;
      I t0 = part == 0 ? _mm512_unpacklo_epi16(r[0], r[1])
                       : _mm512_unpackhi_epi16(r[0], r[1]);
      I t1 = part == 0 ? _mm512_unpacklo_epi16(r[2], r[3])
                       : _mm512_unpackhi_epi16(r[2], r[3]);
      pairs[q][0] = _mm512_unpacklo_epi32(t0, t1);
      pairs[q][1] = _mm512_unpackhi_epi32(t0, t1);
    }
#pragma GCC unroll 2
    for (int p = 0; p < 2; ++p) {
      float* to = out + (4 * part + 2 * p) * kStripOutputs;
      I low = pairs[0][p], high = pairs[1][p];
      if constexpr (kShort) {
        f_store(to, i_as_f(_mm512_unpacklo_epi16(i_zero(), low)));
        f_store(to + kLanes, i_as_f(_mm512_unpacklo_epi16(i_zero(), high)));
        to += kStripOutputs;
        f_store(to, i_as_f(_mm512_unpackhi_epi16(i_zero(), low)));
        f_store(to + kLanes, i_as_f(_mm512_unpackhi_epi16(i_zero(), high)));
      } else {
        for (I halves :
             {_mm512_unpacklo_epi64(low, high),
              _mm512_unpackhi_epi64(low, high)}) {
          f_store(to, _mm512_cvtph_ps(_mm512_castsi512_si256(halves)));
          f_store(
              to + kLanes,
              _mm512_cvtph_ps(_mm512_extracti64x4_epi64(halves, 1)));
          to += kStripOutputs;
        }
      }
    }
  }
}

// One chunk of 32 outputs: units of 4 codes [unit][output], then scales and
// biases [group][output].
struct StripPanel {
  alignas(64) std::byte units[kStripColumns * kStripOutputs];
  alignas(64) float scales[kStripGroups * kStripOutputs];
  alignas(64) float biases[kStripGroups * kStripOutputs];
};

// Fetches the next block of outputs, in the order of memory: what the loads of
// a block look like, a line of each of many rows, no hardware foresees.
struct StripFetch {
  const char* at;
  const char* end;

  StripFetch(const std::byte* rows, size_t stride)
      : at(reinterpret_cast<const char*>(rows)),
        end(at + stride * kStripOutputs) {}
  int64_t lines() const {
    return (end - at) / 64 + 1;
  }
  void line() {
    _mm_prefetch(at, _MM_HINT_T0);
    at = at + 64 < end ? at + 64 : end;
  }
  void fetch(int64_t count) {
    for (; count > 0; --count) {
      line();
    }
  }
  void all() {
    for (; at < end; at += 64) {
      _mm_prefetch(at, _MM_HINT_T0);
    }
  }
};

// Columns [k0, k1) of outputs row, row + 1, ...; outputs from `count` on repeat
// the last one.
template <int kBits, typename T>
void strip_pack(
    const Matrix& m,
    int64_t row,
    int count,
    int64_t k0,
    int64_t k1,
    StripPanel& panel) {
  int64_t group = m.quant.group_size;
  int64_t first_group = k0 / group, groups = (k1 - k0) / group;
  int64_t words = (k1 - k0) * kBits / 32;
  for (int half = 0; half < 2; ++half) {
    const std::byte* codes[kLanes];
    for (int r = 0; r < kLanes; ++r) {
      size_t at = size_t(row + min_of(half * kLanes + r, count - 1));
      codes[r] = m.weight + at * m.weight_stride + k0 * kBits / 8;
    }
    std::byte* units = panel.units + half * kLanes * 4;
    auto store = [&](int64_t word, I v) {
      i_store(units + word * kStripOutputs * 4, v);
    };
    int64_t word = 0;
    for (; word + kLanes <= words; word += kLanes) {
      I v[4][4];
#pragma GCC unroll 4
      for (int q = 0; q < 4; ++q) {
        I r[4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
          r[j] = i_load(codes[4 * q + j] + word * 4);
        }
        transpose_lanes(r, v[q]);
      }
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        I t0 = _mm512_shuffle_i32x4(v[0][j], v[1][j], 0x44);
        I t1 = _mm512_shuffle_i32x4(v[0][j], v[1][j], 0xee);
        I t2 = _mm512_shuffle_i32x4(v[2][j], v[3][j], 0x44);
        I t3 = _mm512_shuffle_i32x4(v[2][j], v[3][j], 0xee);
        store(word + j, _mm512_shuffle_i32x4(t0, t2, 0x88));
        store(word + 4 + j, _mm512_shuffle_i32x4(t0, t2, 0xdd));
        store(word + 8 + j, _mm512_shuffle_i32x4(t1, t3, 0x88));
        store(word + 12 + j, _mm512_shuffle_i32x4(t1, t3, 0xdd));
      }
    }
    for (; word < words; word += 4) {
      I v[4];
      transpose_four(codes, word * 4, 16, v);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        store(word + j, v[j]);
      }
    }
  }
  int64_t offsets[kStripOutputs];
  for (int r = 0; r < kStripOutputs; ++r) {
    offsets[r] = (row + min_of(r, count - 1)) * int64_t(m.scale_stride);
  }
  for (int64_t g = 0; g < groups; g += 8) {
    int64_t at = (first_group + g) * 2, to = g * kStripOutputs;
    auto stride = int64_t(m.scale_stride);
    int64_t left = groups - g;
    strip_factors<T>(m.scales, offsets, at, stride, left, panel.scales + to);
    strip_factors<T>(m.biases, offsets, at, stride, left, panel.biases + to);
  }
}

// Adds a chunk's products to the sums of kX rows, [class][row][output], or
// begins them with the first chunk.
template <int kBits, int kX, bool kShort>
void strip_multiply(
    const Matrix& m,
    const StripPanel& panel,
    int64_t k0,
    int64_t k1,
    const std::byte* x,
    size_t row_bytes,
    int lines,
    StripFetch& fetch,
    float* sums) {
  // Known where it is the shortest, which leaves no loop over its units.
  int64_t group = kShort ? 32 : m.quant.group_size;
  int64_t first_group = k0 / group, groups = (k1 - k0) / group;
  int64_t classes = group_classes(m);
  const std::byte* row[kX];
#pragma GCC unroll 4
  for (int i = 0; i < kX; ++i) {
    row[i] = x + size_t(i) * row_bytes;
  }
  int64_t scale_at = m.in * 2 + first_group * 4;
  int64_t sum_at = scale_at + m.in / group * 4;
  for (int64_t c = 0; c < classes; ++c, sums += kStripBatch * kStripOutputs) {
    F acc[kX][2];
#pragma GCC unroll 4
    for (int i = 0; i < kX; ++i) {
      const float* from = sums + i * kStripOutputs;
      acc[i][0] = k0 > 0 ? f_load(from) : f_zero();
      acc[i][1] = k0 > 0 ? f_load(from + kLanes) : f_zero();
    }
    int64_t begin = (c + classes - first_group % classes) % classes;
    for (int64_t g = begin; g < groups; g += classes) {
      const std::byte* units =
          panel.units + g * group * kStripOutputs * kBits / 8;
      int64_t at = (k0 + g * group) * 2;  // in a row
      for (int line = 0; line < lines; ++line) {
        fetch.line();
      }
      I high[kX][2], low[kX][2];
#pragma GCC unroll 4
      for (int i = 0; i < kX; ++i) {
        high[i][0] = high[i][1] = low[i][0] = low[i][1] = i_zero();
      }
      auto multiply = [&](I w0, I w1) __attribute__((always_inline)) {
#pragma GCC unroll 4
        for (int i = 0; i < kX; ++i) {
          I h = i_set(load<int32_t>(row[i] + at));
          I l = i_set(load<int32_t>(row[i] + at + 4));
          dot_bytes(high[i][0], w0, h);
          dot_bytes(high[i][1], w1, h);
          dot_bytes(low[i][0], w0, l);
          dot_bytes(low[i][1], w1, l);
        }
        at += 8;
      };
      auto word = [&]() __attribute__((always_inline)) {
        I w0 = i_load(units), w1 = i_load(units + kLanes * 4);
        if constexpr (kBits == 8) {
          multiply(w0, w1);
        } else {
          const I mask = i_set(0x0f0f0f0f);
          multiply(i_and(w0, mask), i_and(w1, mask));
          multiply(i_and(i_shr16<4>(w0), mask), i_and(i_shr16<4>(w1), mask));
        }
        units += kStripOutputs * 4;
      };
      if constexpr (kShort) {
#pragma GCC unroll 8
        for (int u = 0; u < kBits; ++u) {
          word();
        }
      } else {
        for (int64_t u = 0; u < group * kBits / 32; ++u) {
          word();
        }
      }
      const float* scales = panel.scales + g * kStripOutputs;
      const float* biases = panel.biases + g * kStripOutputs;
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        F s = f_load(scales + h * kLanes), b = f_load(biases + h * kLanes);
#pragma GCC unroll 4
        for (int i = 0; i < kX; ++i) {
          F x_scale = f_set(load<float>(row[i] + scale_at + g * 4));
          F x_sum = f_set(load<float>(row[i] + sum_at + g * 4));
          I dot = i_add(i_shl32<8>(high[i][h]), low[i][h]);
          acc[i][h] = f_fma(f_mul(i_to_f(dot), s), x_scale, acc[i][h]);
          acc[i][h] = f_fma(b, x_sum, acc[i][h]);
        }
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < kX; ++i) {
      f_store(sums + i * kStripOutputs, acc[i][0]);
      f_store(sums + i * kStripOutputs + kLanes, acc[i][1]);
    }
  }
}

template <int kBits, typename T>
void strip_decode(
    const Matrix& m,
    int64_t begin,
    int64_t end,
    const std::byte* x,
    int rows,
    float* y,
    int64_t ldy) {
  StripPanel panel;
  alignas(64) float sums[4 * kStripBatch * kStripOutputs];
  constexpr int64_t kClass = kStripBatch * kStripOutputs;
  size_t row_bytes = strip_row_bytes(m);
  int64_t classes = group_classes(m);
  int64_t chunks = (m.in + kStripColumns - 1) / kStripColumns;
  // Whole vectors of codes.
  int64_t columns = ceil_to((m.in + chunks - 1) / chunks, 128);
  // Lines fetched for each group of columns and of rows, so that the next
  // outputs arrive during the products of these.
  int64_t turns =
      m.in / m.quant.group_size * ((rows + kStripRows - 1) / kStripRows);
  int lines =
      int((int64_t(m.weight_stride) * kStripOutputs / 64 + turns) / turns);
  // Calls of the products before a block's last chunk.
  int64_t calls =
      (chunks > 1 ? chunks - 1 : 1) * ((rows + kStripRows - 1) / kStripRows);
  for (int64_t o = begin; o < end; o += kStripOutputs) {
    int count = int(min_of(kStripOutputs, end - o));
    FirstRows next = rows_from(m, o + kStripOutputs);
    if (o + kStripOutputs >= end && m.after != nullptr) {
      next = *m.after;
    }
    StripFetch fetch(next.weight, next.weight_stride);
    // Not at once: that many lines on their way hold up the loads.
    StripFetch scales(next.scales, next.scale_stride);
    StripFetch biases(next.biases, next.scale_stride);
    int64_t scale_lines = (scales.lines() + calls - 1) / calls;
    for (int64_t k0 = 0; k0 < m.in; k0 += columns) {
      int64_t k1 = min_of(k0 + columns, m.in);
      strip_pack<kBits, T>(m, o, count, k0, k1, panel);
      for_row_groups<kStripRows>(rows, [&]<int kX>(int first) {
        scales.fetch(scale_lines);
        biases.fetch(scale_lines);
        auto multiply = m.quant.group_size == 32
                            ? strip_multiply<kBits, kX, true>
                            : strip_multiply<kBits, kX, false>;
        multiply(
            m,
            panel,
            k0,
            k1,
            x + size_t(first) * row_bytes,
            row_bytes,
            lines,
            fetch,
            sums + first * kStripOutputs);
        if (m.fetch != nullptr) {
          m.fetch->pass(count, kX * (k1 - k0), rows * m.in);
        }
      });
    }
    fetch.all();
    for (int i = 0; i < rows; ++i) {
      for (int h = 0; h < 2 && h * kLanes < count; ++h) {
        const float* from = sums + i * kStripOutputs + h * kLanes;
        F v = f_load(from);
        if (classes == 2) {
          v = f_add(v, f_load(from + kClass));
        } else if (classes == 4) {
          v = f_add(
              f_add(v, f_load(from + 2 * kClass)),
              f_add(f_load(from + kClass), f_load(from + 3 * kClass)));
        }
        float* to = y + i * ldy + (o - begin) + h * kLanes;
        int n = int(min_of(kLanes, count - h * kLanes));
        n == kLanes ? f_store(to, v) : f_store_part(to, v, n);
      }
    }
  }
}

// ---- Both.

inline size_t coded_row_bytes(const Matrix& m) {
  size_t lane = lane_row_bytes(m), strip = strip_row_bytes(m);
  return lane > strip ? lane : strip;
}

void coded_pack(
    const Matrix& m, const float* x, int row, int rows, std::byte* out) {
  if (rows > lane_rows(m)) {
    strip_pack_row(m, x, out + size_t(row) * strip_row_bytes(m));
  } else if (m.quant.bits == 4) {
    lane_pack_row<4>(m, x, out + size_t(row) * lane_row_bytes(m));
  } else {
    lane_pack_row<8>(m, x, out + size_t(row) * lane_row_bytes(m));
  }
}

template <int kBits, typename T>
void coded_decode(
    const Matrix& m,
    int64_t begin,
    int64_t end,
    const std::byte* x,
    int rows,
    float* y,
    int64_t ldy) {
  if (rows <= lane_rows(m)) {
    lane_decode<kBits, T>(m, begin, end, x, rows, y, ldy);
    return;
  }
  for (int first = 0; first < rows; first += kStripBatch) {
    strip_decode<kBits, T>(
        m,
        begin,
        end,
        x + size_t(first) * strip_row_bytes(m),
        int(min_of(kStripBatch, rows - first)),
        y + first * ldy,
        ldy);
  }
}
