// Codes of 8 bits times 16-bit activations, for coded_lanes.h and
// coded_strips.h. Included inside an anonymous namespace.
//
// A group's activations are integers 256 high + low with a scale, both parts
// signed bytes: two sums of byte products make its dot.

constexpr int kLargestActivation = 127 * 256 + 127;

// One group of an activation row as integers in f32 lanes, with its scale and
// the scaled sum of the rounded values: their errors then meet the weight
// itself, and not scale * code, which is larger.
struct GroupCodes {
  F values[128 / kLanes];
  float scale, sum;

  GroupCodes(const float* x, int64_t group) {
    F most = f_zero(), total = f_zero();
    for (int64_t k = 0; k < group / kLanes; ++k) {
      values[k] = f_load(x + k * kLanes);
      most = f_max(most, f_abs(values[k]));
    }
    float top = f_max_lane(most);
    F inverse = f_set(top > 0 ? float(kLargestActivation) / top : 0);
    for (int64_t k = 0; k < group / kLanes; ++k) {
      values[k] = f_round(f_mul(values[k], inverse));
      total = f_add(total, values[k]);
    }
    scale = top / float(kLargestActivation);
    sum = scale * _mm512_reduce_add_ps(total);
  }
  // The low bytes of 32 columns from column k, 16 bits each, and the high
  // bytes, with the sign that makes 256 high + low the column.
  I low(int64_t k) const {
    return i_pack16(f_to_i(values[k / 16]), f_to_i(values[k / 16 + 1]));
  }
  static I high(I low) {
    return _mm512_srai_epi16(_mm512_add_epi16(low, _mm512_set1_epi16(128)), 8);
  }
};

// Each 128 bits of four vectors summed up: vector r in lane r of them.
inline I sum_quad(const I* d) {
  I t0 = i_add(
      _mm512_unpacklo_epi32(d[0], d[1]), _mm512_unpackhi_epi32(d[0], d[1]));
  I t1 = i_add(
      _mm512_unpacklo_epi32(d[2], d[3]), _mm512_unpackhi_epi32(d[2], d[3]));
  return i_add(_mm512_unpacklo_epi64(t0, t1), _mm512_unpackhi_epi64(t0, t1));
}

struct ByteCodes {
  static constexpr int kBits = 8;
  // The most rows of the kernel with lanes along the columns (measured).
  static constexpr int kLaneRows = 4;

  // A row has no scale of its own.
  static float row_scale(const std::byte*) {
    return 1;
  }

  // ---- Lanes along the columns. For each vector of codes: the high bytes of
  // its activations, the low ones, then the scale and the sum of the group of
  // each lane.
  static constexpr int64_t kLow = kLanes * 4, kScale = 2 * kLow,
                           kLaneSums = 3 * kLow, kLaneBytes = 4 * kLow;
  static size_t lane_row_bytes(const Matrix& m) {
    return size_t(lane_blocks(m) * kLaneBytes);
  }

  static void lane_pack_row(const Matrix& m, const float* x, std::byte* out) {
    constexpr int64_t kBlock = kLanes * 4;  // columns of a vector
    int64_t group = m.quant.group_size, blocks = lane_blocks(m);
    __builtin_memset(out + (blocks - 1) * kLaneBytes, 0, kLaneBytes);
    for (int64_t g = 0; g < m.in / group; ++g) {
      GroupCodes codes(x + g * group, group);
      for (int64_t k = 0; k < group; k += 32) {
        int64_t column = g * group + k;
        std::byte* to = out + column / kBlock * kLaneBytes + column % kBlock;
        I low = codes.low(k), high = codes.high(low);
        auto store = [](std::byte* at, I bytes) {
          _mm256_storeu_si256(
              reinterpret_cast<__m256i*>(at), _mm512_cvtepi16_epi8(bytes));
        };
        store(to, high);
        store(to + kLow, low);
      }
      // The vector that ends the group.
      std::byte* block = out + ((g + 1) * group - 1) / kBlock * kLaneBytes;
      lane_store_group(m, g, codes.scale, block + kScale);
      lane_store_group(m, g, codes.sum, block + kLaneSums);
    }
  }

  using Weights = I;
  static Weights take(I v) {
    return v;
  }
  // The sums of four outputs, in each 128 bits.
  static I lane_sums(const Weights* w, const std::byte* x) {
    I high = i_load(x), low = i_load(x + kLow);
    I dots[4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      I dot = i_zero();
      dot_bytes(dot, w[r], high);
      dot = i_shl32<8>(dot);
      dot_bytes(dot, w[r], low);
      dots[r] = dot;
    }
    return sum_quad(dots);
  }
  static F scaled(F sums, const std::byte* x) {
    return f_mul(sums, f_load(x + kScale));
  }

  // ---- Lanes along the outputs. A row: for each 4 columns the words high,
  // low; then a scale and a sum for each group.
  static size_t strip_row_bytes(const Matrix& m) {
    int64_t groups = m.in / m.quant.group_size;
    return size_t(ceil_to(m.in * 2 + groups * 8, 64));
  }
  static int64_t strip_sums_at(const Matrix& m) {
    return m.in * 2 + m.in / m.quant.group_size * 4;
  }
  static int64_t strip_scale_at(const Matrix&) {
    return 0;
  }

  static void strip_pack_row(const Matrix& m, const float* x, std::byte* out) {
    const I interleave =
        _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
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
        i_store(
            out + (g * group + k) * 2,
            _mm512_permutexvar_epi32(interleave, bytes));
      }
      __builtin_memcpy(scales + g * 4, &codes.scale, 4);
      __builtin_memcpy(sums + g * 4, &codes.sum, 4);
    }
  }

  // `bytes` of 16 outputs' codes into half a panel: units of 4 codes
  // [unit][output].
  static void strip_units(
      const std::byte* const* codes, int64_t bytes, int half, std::byte* out) {
    out += half * kLanes * 4;
    auto store = [&](int64_t word, I v) {
      i_store(out + word * kStripOutputs * 4, v);
    };
    int64_t words = bytes / 4, word = 0;
    for (; word + kLanes <= words; word += kLanes) {
      I v[kLanes];
#pragma GCC unroll 16
      for (int r = 0; r < kLanes; ++r) {
        v[r] = i_load(codes[r] + word * 4);
      }
      transpose(v);
#pragma GCC unroll 16
      for (int r = 0; r < kLanes; ++r) {
        store(word + r, v[r]);
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

  // The dots of a group that begins at `column`.
  template <int kX>
  __attribute__((always_inline)) static void strip_dots(
      const Matrix&,
      const std::byte* units,
      const std::byte* const* row,
      int64_t column,
      int64_t group,
      I (&dot)[kX][2]) {
    I high[kX][2];
#pragma GCC unroll 4
    for (int i = 0; i < kX; ++i) {
      high[i][0] = high[i][1] = dot[i][0] = dot[i][1] = i_zero();
    }
    int64_t at = column * 2;
#pragma GCC unroll 8
    for (int64_t u = 0; u < group / 4; ++u) {
      I w0 = i_load(units), w1 = i_load(units + kLanes * 4);
#pragma GCC unroll 4
      for (int i = 0; i < kX; ++i) {
        I h = i_set(load<int32_t>(row[i] + at));
        I l = i_set(load<int32_t>(row[i] + at + 4));
        dot_bytes(high[i][0], w0, h);
        dot_bytes(high[i][1], w1, h);
        dot_bytes(dot[i][0], w0, l);
        dot_bytes(dot[i][1], w1, l);
      }
      at += 8;
      units += kStripOutputs * 4;
    }
#pragma GCC unroll 4
    for (int i = 0; i < kX; ++i) {
      dot[i][0] = i_add(i_shl32<8>(high[i][0]), dot[i][0]);
      dot[i][1] = i_add(i_shl32<8>(high[i][1]), dot[i][1]);
    }
  }
  static F strip_scaled(
      const Matrix& m, F dot, const std::byte* row, int64_t group) {
    return f_mul(dot, f_set(load<float>(row + m.in * 2 + group * 4)));
  }
};
