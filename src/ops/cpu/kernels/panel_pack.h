// Packing for products of many activation rows: a block of weight rows is
// converted once to a panel whose lanes run along the outputs, so that sums
// need no work across lanes. Included inside an anonymous namespace.
//
// A unit is what one 32-bit lane holds: one f32, two bf16 or two 16-bit
// integers of consecutive columns (8-bit integers: byte_panels.h).
//   tile:  [unit][row]                   activations
//   panel: [strip][unit][kStrip lanes]   weights of kStrip outputs each
// Integer tiles go on with the scales and the sums of the activations,
// [group][row]; integer strips begin with the scales and the biases,
// [group][kStrip].

constexpr int kStrip = 2 * kLanes;         // outputs of a strip
constexpr int kPanelStrips = 64 / kStrip;  // a panel has 64 outputs
constexpr int kPanelRows = kStrip * kPanelStrips;
constexpr int64_t kPanelColumns = 2048;  // a bf16 panel of 256 kB, in L2

inline int64_t unit_columns(Arithmetic arithmetic) {
  return arithmetic == Arithmetic::f32 ? 1 : 2;
}

inline int64_t unit_count(const Matrix& m, int64_t columns) {
  int64_t unit = unit_columns(m.prefill);
  return (columns + unit - 1) / unit;
}

inline int64_t tile_data_bytes(const Matrix& m, int rows) {
  // Transposes write whole vectors past the last unit.
  return ceil_to(unit_count(m, m.in) * rows * 4 + kLanes * kLanes * 4, 64);
}

// Writes kLanes units of up to kLanes rows; later units overwrite the excess.
inline void store_units(I* r, int rows, std::byte* out) {
  transpose(r);
  for (int u = 0; u < kLanes; ++u) {
    i_store(out + int64_t(u) * rows * 4, r[u]);
  }
}

#if defined(__AVX512BF16__)
inline I bf16_pairs(F low, F high) {
  return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

// 16-bit lanes i and 16 + i side by side.
inline I interleave16(I v) {
  alignas(64) static constexpr uint16_t kOrder[32] = {
      0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return _mm512_permutexvar_epi16(i_load(kOrder), v);
}
#endif

inline void float_tile_pack(
    const Matrix& m, const float* x, int64_t ldx, int rows, std::byte* out) {
  bool wide = m.prefill == Arithmetic::f32;
  int64_t step = wide ? kLanes : 2 * kLanes;  // columns a transpose takes
  for (int64_t k = 0; k < m.in; k += step) {
    I r[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      r[i] = i_zero();
      if (i >= rows) {
        continue;
      }
      const float* row = x + i * ldx + k;
      auto get = [&](int64_t offset) {
        int64_t left = m.in - k - offset;
        return left >= kLanes ? f_load(row + offset)
               : left > 0     ? f_load_part(row + offset, left)
                              : f_zero();
      };
      if (wide) {
        r[i] = f_as_i(get(0));
        continue;
      }
#if defined(__AVX512BF16__)
      r[i] = bf16_pairs(get(0), get(kLanes));
#endif
    }
    int64_t units = wide ? k : k / 2;
    store_units(r, rows, out + units * rows * 4);
  }
}

// Quantizes to 16 bits by group.
void integer_tile_pack(
    const Matrix& m, const float* x, int64_t ldx, int rows, std::byte* out) {
  constexpr int kMost = 32767, kUnit = 2;
  int64_t group = m.quant.group_size, groups = m.in / group;
  auto* scales = reinterpret_cast<float*>(out + tile_data_bytes(m, rows));
  float* sums = scales + groups * rows;
  for (int64_t g = 0; g < groups; ++g) {
    alignas(64) int32_t units[kLanes][64];
    for (int i = 0; i < rows; ++i) {
      const float* row = x + i * ldx + g * group;
      F most = f_zero(), sum = f_zero();
      for (int64_t k = 0; k < group; k += kLanes) {
        most = f_max(most, f_abs(f_load(row + k)));
      }
      float top = f_max_lane(most);
      F inverse = f_set(top > 0 ? kMost / top : 0);
      auto code = [&](int64_t k) {
        F v = f_round(f_mul(f_load(row + k), inverse));
        sum = f_add(sum, v);
        return f_to_i(v);
      };
      auto* codes = reinterpret_cast<std::byte*>(units[i]);
      for (int64_t k = 0; k < group; k += 2 * kLanes) {
        I low = code(k), high = code(k + kLanes);
        i_store(codes + k * 2, i_pack16(low, high));
      }
      scales[g * rows + i] = top / kMost;
      // Of the rounded values: their errors then meet the weight itself.
      sums[g * rows + i] =
          top / kMost * _mm_cvtss_f32(sum_lanes(sum, sum, sum, sum));
    }
    std::byte* at = out + g * (group / kUnit) * rows * 4;
    int64_t count = group / kUnit;
    for (int64_t u = 0; u < count; u += kLanes) {
      I r[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        r[i] = i < rows ? i_load(units[i] + u) : i_zero();
      }
      transpose(r);
      for (int64_t j = 0; j < min_of(kLanes, count - u); ++j) {
        i_store(at + (u + j) * rows * 4, r[j]);
      }
    }
  }
}

int64_t panel_columns(const Matrix& m) {
  return m.prefill == Arithmetic::f32 ? kPanelColumns / 2 : kPanelColumns;
}

inline int64_t strip_scale_bytes(const Matrix& m, int64_t columns) {
  return m.prefill == Arithmetic::int16
             ? 2 * columns / m.quant.group_size * kStrip * 4
             : 0;
}

inline int64_t strip_bytes(const Matrix& m, int64_t columns) {
  // Whole transposes at the end of a row.
  int64_t units = ceil_to(unit_count(m, columns), kLanes);
  return strip_scale_bytes(m, columns) + units * kStrip * 4;
}

// Weights of one half strip (kLanes rows), columns [k0, k1).
template <typename Reader>
void float_half_strip(
    const Matrix& m,
    int64_t row,
    int count,
    int64_t k0,
    int64_t k1,
    std::byte* out) {
  bool wide = m.prefill == Arithmetic::f32;
  int64_t step = wide ? kLanes : 2 * kLanes;
  int64_t group = Reader::kGroups ? m.quant.group_size : m.in;
  for (int64_t k = k0; k < k1; k += step) {
    I r[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      if (i >= count) {
        r[i] = i_zero();
        continue;
      }
      Reader reader(m, row + i);
      if constexpr (Reader::kGroups) {
        reader.group(k / group);
      }
      auto get = [&](int64_t at) {
        int64_t left = k1 - at;
        return left >= kLanes ? reader.at(at)
               : left > 0     ? reader.part(at, left)
                              : f_zero();
      };
      if (wide) {
        r[i] = f_as_i(get(k));
        continue;
      }
#if defined(__AVX512BF16__)
      r[i] = bf16_pairs(get(k), get(k + kLanes));
#endif
    }
    transpose(r);
    int64_t unit = (k - k0) / (wide ? 1 : 2);
#pragma GCC unroll 16
    for (int u = 0; u < kLanes; ++u) {
      i_store(out + (unit + u) * kStrip * 4, r[u]);
    }
  }
}

// The scales and biases of columns [k0, k1) of kLanes rows, `stride` floats
// from group to group.
template <typename T>
void transpose_scales(
    const Matrix& m,
    int64_t row,
    int count,
    int64_t k0,
    int64_t k1,
    int64_t stride,
    float* scale,
    float* bias) {
  int64_t first = k0 / m.quant.group_size;
  int64_t groups = (k1 - k0) / m.quant.group_size;
  for (int64_t g = 0; g < groups; g += kLanes) {
    int64_t n = min_of(kLanes, groups - g);
    for (int which = 0; which < 2; ++which) {
      I r[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        r[i] = i_zero();
        if (i < count) {
          const std::byte* p = (which == 0 ? m.scales : m.biases) +
                               size_t(row + i) * m.scale_stride +
                               (first + g) * T::kBytes;
          r[i] = f_as_i(n == kLanes ? T::get(p) : T::part(p, n));
        }
      }
      transpose(r);
      float* to = which == 0 ? scale : bias;
      for (int64_t j = 0; j < n; ++j) {
        i_store(to + (g + j) * stride, r[j]);
      }
    }
  }
}

// As float_half_strip, for codes of 4 or 8 bits: 32-bit words of codes are
// transposed before they are taken apart, so that a group's scale is a vector.
template <int kBits, typename T>
void coded_half_strip(
    const Matrix& m,
    int64_t row,
    int count,
    int64_t k0,
    int64_t k1,
    std::byte* out) {
  constexpr int kCodes = 32 / kBits;  // in a word
  constexpr int64_t kMostGroups = kPanelColumns / 32;
  bool wide = m.prefill == Arithmetic::f32;
  alignas(64) float scale[kMostGroups * kLanes], bias[kMostGroups * kLanes];
  transpose_scales<T>(m, row, count, k0, k1, kLanes, scale, bias);
  int64_t words = (k1 - k0) / kCodes;
  int64_t group_words = m.quant.group_size / kCodes;
  for (int64_t word = 0; word < words; word += kLanes) {
    int64_t n = min_of(kLanes, words - word);
    I r[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      r[i] = i_zero();
      if (i < count) {
        const std::byte* p = m.weight + size_t(row + i) * m.weight_stride +
                             k0 * kBits / 8 + word * 4;
        r[i] = n == kLanes ? i_load(p) : i_load_part(p, n * 4);
      }
    }
    transpose(r);
    for (int64_t j = 0; j < n; ++j) {
      int64_t group = (word + j) / group_words;
      F s = f_load(scale + group * kLanes), b = f_load(bias + group * kLanes);
      std::byte* to = out + (word + j) * kCodes / (wide ? 1 : 2) * kStrip * 4;
      I codes = r[j];
#pragma GCC unroll 4
      for (int c = 0; c < kCodes; c += 2) {
        constexpr int kMask = (1 << kBits) - 1;
        F low = f_fma(i_to_f(i_and(codes, i_set(kMask))), s, b);
        codes = i_shr32<kBits>(codes);
        F high = f_fma(i_to_f(i_and(codes, i_set(kMask))), s, b);
        codes = i_shr32<kBits>(codes);
        if (wide) {
          i_store(to, f_as_i(low));
          i_store(to + kStrip * 4, f_as_i(high));
          to += kStrip * 8;
          continue;
        }
#if defined(__AVX512BF16__)
        i_store(to, interleave16(bf16_pairs(low, high)));
        to += kStrip * 4;
#endif
      }
    }
  }
}

// kLanes units of 16-bit codes from column k.
template <int kBits>
inline I code_units(const std::byte* row, int64_t k) {
  if constexpr (kBits == 4) {
    I v = u8_to_i(row + k / 2);
    return i_or(i_and(v, i_set(15)), i_and(i_shl32<12>(v), i_set(15 << 16)));
  }
  I v = u16_to_i(row + k);
  return i_or(i_and(v, i_set(255)), i_and(i_shl32<8>(v), i_set(255 << 16)));
}

template <int kBits, typename T>
void integer_half_strip(
    const Matrix& m,
    int64_t row,
    int count,
    int64_t k0,
    int64_t k1,
    std::byte* scales,
    std::byte* out) {
  constexpr int64_t kColumns = 2 * kLanes;
  for (int64_t k = k0; k < k1; k += kColumns) {  // groups are multiples of it
    I r[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      r[i] = i < count ? code_units<kBits>(
                             m.weight + size_t(row + i) * m.weight_stride, k)
                       : i_zero();
    }
    transpose(r);
    int64_t unit = (k - k0) / 2;
#pragma GCC unroll 16
    for (int u = 0; u < kLanes; ++u) {
      i_store(out + (unit + u) * kStrip * 4, r[u]);
    }
  }
  auto* scale = reinterpret_cast<float*>(scales);
  transpose_scales<T>(
      m,
      row,
      count,
      k0,
      k1,
      kStrip,
      scale,
      scale + (k1 - k0) / m.quant.group_size * kStrip);
}

void integer_half_strip_of(
    const Matrix& m,
    int64_t row,
    int count,
    int64_t k0,
    int64_t k1,
    std::byte* scales,
    std::byte* out) {
  auto run = [&]<int kBits, typename T>() {
    integer_half_strip<kBits, T>(m, row, count, k0, k1, scales, out);
  };
  bool half = m.dtype == DType::f16;
  if (m.quant.bits == 4) {
    half ? run.template operator()<4, F16>()
         : run.template operator()<4, BF16>();
  } else {
    half ? run.template operator()<8, F16>()
         : run.template operator()<8, BF16>();
  }
}

void float_half_strip_of(
    const Matrix& m,
    int64_t row,
    int count,
    int64_t k0,
    int64_t k1,
    std::byte* out) {
  if (!has_int16_codes(m)) {
    with_reader(m, [&]<typename Reader>() {
      float_half_strip<Reader>(m, row, count, k0, k1, out);
    });
    return;
  }
  with_plain(m.dtype, [&]<typename T>() {
    m.quant.bits == 4 ? coded_half_strip<4, T>(m, row, count, k0, k1, out)
                      : coded_half_strip<8, T>(m, row, count, k0, k1, out);
  });
}
