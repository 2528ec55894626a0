// Products of many rows with codes of 4 or 8 bits, lanes along the outputs (see
// coded_lanes.h). Included inside an anonymous namespace, only where there is
// VNNI.

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

// One chunk of 32 outputs: codes in the order of Codes::strip_units, then
// scales and biases [group][output].
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
template <typename Codes, typename T>
void strip_pack(
    const Matrix& m,
    int64_t row,
    int count,
    int64_t k0,
    int64_t k1,
    StripPanel& panel) {
  int64_t group = m.quant.group_size;
  int64_t first_group = k0 / group, groups = (k1 - k0) / group;
  auto row_of = [&](int r) { return row + min_of(r, count - 1); };
  for (int half = 0; half < 2; ++half) {
    const std::byte* codes[kLanes];
    for (int r = 0; r < kLanes; ++r) {
      codes[r] = m.weight +
                 size_t(row_of(half * kLanes + r)) * m.weight_stride +
                 k0 * Codes::kBits / 8;
    }
    Codes::strip_units(codes, (k1 - k0) * Codes::kBits / 8, half, panel.units);
  }
  int64_t offsets[kStripOutputs];
  for (int r = 0; r < kStripOutputs; ++r) {
    offsets[r] = row_of(r) * int64_t(m.scale_stride);
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
template <typename Codes, int kX, bool kShort>
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
  int64_t sum_at = Codes::strip_sums_at(m) + first_group * 4;
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
      for (int line = 0; line < lines; ++line) {
        fetch.line();
      }
      I dot[kX][2];
      Codes::template strip_dots<kX>(
          m,
          panel.units + g * group * kStripOutputs * Codes::kBits / 8,
          row,
          k0 + g * group,
          group,
          dot);
      const float* scales = panel.scales + g * kStripOutputs;
      const float* biases = panel.biases + g * kStripOutputs;
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        F s = f_load(scales + h * kLanes), b = f_load(biases + h * kLanes);
#pragma GCC unroll 4
        for (int i = 0; i < kX; ++i) {
          F x_sum = f_set(load<float>(row[i] + sum_at + g * 4));
          F d = Codes::strip_scaled(
              m, i_to_f(dot[i][h]), row[i], first_group + g);
          acc[i][h] = f_fma(d, s, acc[i][h]);
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

template <typename Codes, typename T>
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
  size_t row_bytes = Codes::strip_row_bytes(m);
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
      strip_pack<Codes, T>(m, o, count, k0, k1, panel);
      for_row_groups<kStripRows>(rows, [&]<int kX>(int first) {
        scales.fetch(scale_lines);
        biases.fetch(scale_lines);
        auto multiply = m.quant.group_size == 32
                            ? strip_multiply<Codes, kX, true>
                            : strip_multiply<Codes, kX, false>;
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
      F scale = f_set(Codes::row_scale(
          x + size_t(i) * row_bytes + Codes::strip_scale_at(m)));
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
        v = f_mul(v, scale);
        float* to = y + i * ldy + (o - begin) + h * kLanes;
        int n = int(min_of(kLanes, count - h * kLanes));
        n == kLanes ? f_store(to, v) : f_store_part(to, v, n);
      }
    }
  }
}
