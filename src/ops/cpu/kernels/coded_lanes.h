// Products of few activation rows with codes of 4 or 8 bits, by integer dots.
// Included inside an anonymous namespace, only where there is VNNI.
//
// An activation is a 16-bit integer with a scale for each weight group, so that
// the dot of a group is exact:
//   y = sum over groups of scale * x_scale * dot + bias * x_sum
// in f32, in an order that both kernels below keep: groups g = j mod C in
// turn for each class j, then the classes as (0 + 2) + (1 + 3). C is the number
// of groups in a vector of codes, at least 1.
//
// Few rows: lanes run along the columns of four outputs, which reads memory as
// it lies (lane_*). More rows: blocks of 32 outputs are transposed so
// that lanes run along the outputs, and all rows are multiplied with a block
// while it lies in the first cache: weights are taken apart once, whatever the
// number of rows, and no sum crosses lanes (strip_*).

constexpr int kLaneRowsAtOnce = 4;
constexpr int kLargestActivation = 127 * 256 + 127;  // 256 hi + lo, s8 both

// The most rows of the first kernel (measured): taking 8-bit codes apart costs
// more for each product, so they are transposed sooner.
inline int lane_rows(const Matrix& m) {
  return m.quant.bits == 4 ? 8 : 4;
}

// Groups that a vector of codes holds, which are summed apart.
inline int64_t group_classes(const Matrix& m) {
  int64_t lanes = m.quant.group_size * m.quant.bits / 32;
  return lanes < kLanes ? kLanes / lanes : 1;
}

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
  // 32 columns from column k, 16 bits each.
  I at(int64_t k) const {
    return i_pack16(f_to_i(values[k / 16]), f_to_i(values[k / 16 + 1]));
  }
};

// ---- Lanes along the columns.

// For each vector of codes: its streams (a vector shifted by s * bits and
// masked to 16-bit lanes is stream s), the scale of each lane and the sum of
// its group. The first 128 bits of a group have
// its scale and its sum, the others zeros.
inline size_t lane_row_bytes(const Matrix& m) {
  int64_t blocks = (m.in * m.quant.bits / 32 + kLanes - 1) / kLanes;
  return size_t(blocks * (16 / m.quant.bits + 2) * kLanes * 4);
}

template <int kBits>
void lane_pack_row(const Matrix& m, const float* x, std::byte* out) {
  constexpr int kStreams = 16 / kBits;
  constexpr int64_t kBlock = kLanes * 32 / kBits;  // columns of a vector
  constexpr int64_t kVector = kLanes * 4;
  int64_t group = m.quant.group_size;
  alignas(64) int16_t natural[128];
  I index[kStreams];
  for (int s = 0; s < kStreams; ++s) {
    alignas(64) uint16_t at[32];
    for (int w = 0; w < 32; ++w) {
      at[w] = uint16_t((w * kStreams + s) % 64);
    }
    index[s] = i_load(at);
  }
  int64_t step = group > kBlock ? group : kBlock;
  for (int64_t k0 = 0; k0 < m.in; k0 += step) {
    alignas(64) float scales[2][kLanes] = {}, sums[2][kLanes] = {};
    __builtin_memset(natural, 0, sizeof(natural));
    for (int64_t k = 0; k < step && k0 + k < m.in; k += group) {
      GroupCodes codes(x + k0 + k, group);
      for (int64_t i = 0; i < group; i += 32) {
        i_store(natural + k + i, codes.at(i));
      }
      // A group of two vectors is summed in the second.
      int64_t lane = k * kBits / 32;
      for (int l = 0; l < 4; ++l) {
        scales[step / kBlock - 1][lane + l] = codes.scale;
        sums[step / kBlock - 1][lane + l] = codes.sum;
      }
    }
    for (int64_t b = 0; b < step / kBlock; ++b) {
      const int16_t* from = natural + b * kBlock;
      for (int s = 0; s < kStreams; ++s, out += kVector) {
        I v = _mm512_permutex2var_epi16(
            i_load(from), index[s], i_load(from + 32));
        if constexpr (kStreams == 4) {
          I w = _mm512_permutex2var_epi16(
              i_load(from + 64), index[s], i_load(from + 96));
          v = _mm512_inserti64x4(v, _mm512_castsi512_si256(w), 1);
        }
        i_store(out, v);
      }
      i_store(out, i_load(scales[b]));
      i_store(out + kVector, i_load(sums[b]));
      out += 2 * kVector;
    }
  }
}

// The scales (or biases) of 16 groups of 4 outputs as [group][output].
inline void transpose_scales_of_four(const F* rows, float* out) {
  I v[4] = {f_as_i(rows[0]), f_as_i(rows[1]), f_as_i(rows[2]), f_as_i(rows[3])};
  I t0 = _mm512_unpacklo_epi32(v[0], v[1]);
  I t1 = _mm512_unpackhi_epi32(v[0], v[1]);
  I t2 = _mm512_unpacklo_epi32(v[2], v[3]);
  I t3 = _mm512_unpackhi_epi32(v[2], v[3]);
  // Vector c holds group 4 j + c in its 128-bit lane j.
  I c0 = _mm512_unpacklo_epi64(t0, t2), c1 = _mm512_unpackhi_epi64(t0, t2);
  I c2 = _mm512_unpacklo_epi64(t1, t3), c3 = _mm512_unpackhi_epi64(t1, t3);
  I a = _mm512_shuffle_i32x4(c0, c1, 0x88),
    b = _mm512_shuffle_i32x4(c2, c3, 0x88);
  I c = _mm512_shuffle_i32x4(c0, c1, 0xdd),
    d = _mm512_shuffle_i32x4(c2, c3, 0xdd);
  // a: groups 0, 8, 1, 9; b: 2, 10, 3, 11; c: 4, 12, 5, 13; d: 6, 14, 7, 15
  i_store(out, _mm512_shuffle_i32x4(a, b, 0x88));
  i_store(out + 16, _mm512_shuffle_i32x4(c, d, 0x88));
  i_store(out + 32, _mm512_shuffle_i32x4(a, b, 0xdd));
  i_store(out + 48, _mm512_shuffle_i32x4(c, d, 0xdd));
}

// What the lanes of block b need of [group][4 outputs]; kWidth lanes a group.
template <int kWidth>
inline F lane_factors(const float* table, int64_t b) {
  if constexpr (kWidth == 4) {
    return f_load(table + b * 16);
  } else if constexpr (kWidth == 8) {
    F pair = _mm512_castps256_ps512(_mm256_loadu_ps(table + b * 8));
    return _mm512_shuffle_f32x4(pair, pair, 0x50);
  } else {
    return _mm512_broadcast_f32x4(_mm_loadu_ps(table + b * 16 / kWidth * 4));
  }
}

// The lanes of each group of four vectors added up: output r in lane r of each
// 128 bits.
template <int kWidth>
inline I sum_group_lanes(const I* d) {
  I t0 = i_add(
      _mm512_unpacklo_epi32(d[0], d[1]), _mm512_unpackhi_epi32(d[0], d[1]));
  I t1 = i_add(
      _mm512_unpacklo_epi32(d[2], d[3]), _mm512_unpackhi_epi32(d[2], d[3]));
  I sums = i_add(_mm512_unpacklo_epi64(t0, t1), _mm512_unpackhi_epi64(t0, t1));
  if constexpr (kWidth >= 8) {
    sums = i_add(sums, _mm512_shuffle_i32x4(sums, sums, 0xb1));
  }
  if constexpr (kWidth >= 16) {
    sums = i_add(sums, _mm512_shuffle_i32x4(sums, sums, 0x4e));
  }
  return sums;
}

template <int kBits, typename T, int kWidth, int kX>
void lane_block(
    const Matrix& m,
    int64_t row,
    int count,
    const std::byte* x,
    size_t x_bytes,
    float* y,
    int64_t ldy) {
  constexpr int kStreams = 16 / kBits;
  constexpr int64_t kVector = kLanes * 4;
  int64_t groups = m.in / m.quant.group_size;
  int64_t left = int64_t(m.weight_stride);
  const std::byte *codes[4], *scales[4], *biases[4];
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    size_t at = size_t(row + (r < count ? r : count - 1));
    codes[r] = m.weight + at * m.weight_stride;
    scales[r] = m.scales + at * m.scale_stride;
    biases[r] = m.biases + at * m.scale_stride;
  }
  int64_t ahead = fetch_distance(m, 4, kX == 1 ? 8192 : 4096);
  int64_t scales_ahead = ahead / left * int64_t(m.scale_stride);
  F acc[kX];
#pragma GCC unroll 4
  for (int i = 0; i < kX; ++i) {
    acc[i] = f_zero();
  }
  for (int64_t g = 0; g < groups; g += kLanes) {
    alignas(64) float scale[4 * kLanes], bias[4 * kLanes];
    {
      F s[4], b[4];
      bool whole = groups - g >= kLanes;
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) {
        const std::byte* s_at = scales[r] + g * T::kBytes;
        const std::byte* b_at = biases[r] + g * T::kBytes;
        s[r] = whole ? T::get(s_at) : T::part(s_at, groups - g);
        b[r] = whole ? T::get(b_at) : T::part(b_at, groups - g);
        _mm_prefetch(
            reinterpret_cast<const char*>(s_at) + scales_ahead, _MM_HINT_T0);
        _mm_prefetch(
            reinterpret_cast<const char*>(b_at) + scales_ahead, _MM_HINT_T0);
      }
      transpose_scales_of_four(s, scale);
      transpose_scales_of_four(b, bias);
    }
    I dot[kX][4];
    for (int64_t block = 0; block < kWidth && left > 0; ++block) {
      I v[4];
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) {
        v[r] = left >= kVector ? i_load(codes[r]) : i_load_part(codes[r], left);
        _mm_prefetch(
            reinterpret_cast<const char*>(codes[r]) + ahead, _MM_HINT_T0);
        codes[r] += kVector;
      }
      bool start = kWidth <= 16 || block % 2 == 0;
      auto add_stream = [&]<int kStream>() {
        I w[4];
#pragma GCC unroll 4
        for (int r = 0; r < 4; ++r) {
          w[r] = stream_codes<kBits, kStream>(v[r]);
        }
#pragma GCC unroll 4
        for (int i = 0; i < kX; ++i) {
          I xv = i_load(x + size_t(i) * x_bytes + kStream * kVector);
#pragma GCC unroll 4
          for (int r = 0; r < 4; ++r) {
            I from = kStream == 0 && start ? i_zero() : dot[i][r];
            dot[i][r] = i_dot16(from, w[r], xv);
          }
        }
      };
      add_stream.template operator()<0>();
      add_stream.template operator()<1>();
      if constexpr (kStreams == 4) {
        add_stream.template operator()<2>();
        add_stream.template operator()<3>();
      }
      if (kWidth <= 16 || block % 2 == 1) {
        F s = lane_factors<kWidth>(scale, block);
        F b = lane_factors<kWidth>(bias, block);
#pragma GCC unroll 4
        for (int i = 0; i < kX; ++i) {
          const std::byte* at = x + size_t(i) * x_bytes + kStreams * kVector;
          F sums = i_to_f(sum_group_lanes<kWidth>(dot[i]));
          acc[i] = f_fma(f_mul(sums, s), f_load(at), acc[i]);
          acc[i] = f_fma(b, f_load(at + kVector), acc[i]);
        }
      }
      x += (kStreams + 2) * kVector;
      left -= kVector;
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kX; ++i) {
    __m256 half = _mm256_add_ps(
        _mm512_castps512_ps256(acc[i]), _mm512_extractf32x8_ps(acc[i], 1));
    store_four(
        _mm_add_ps(
            _mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)),
        count,
        y + i * ldy);
  }
}

template <int kBits, typename T>
void lane_decode(
    const Matrix& m,
    int64_t begin,
    int64_t end,
    const std::byte* x,
    int rows,
    float* y,
    int64_t ldy) {
  size_t x_bytes = lane_row_bytes(m);
  // Weights that stay in the second cache while all rows use them.
  constexpr int64_t kBlockBytes = 128 * 1024;
  int64_t block = kBlockBytes / int64_t(m.weight_stride) / 4 * 4;
  block = rows <= kLaneRowsAtOnce ? end - begin : block < 4 ? 4 : block;
  auto run = [&]<int kWidth>() {
    for (int64_t first = begin; first < end; first += block) {
      int64_t stop = min_of(first + block, end);
      for_row_groups<kLaneRowsAtOnce>(rows, [&]<int kX>(int x_row) {
        const std::byte* from = x + size_t(x_row) * x_bytes;
        float* to = y + x_row * ldy;
        for (int64_t o = first; o < stop; o += 4) {
          int count = int(min_of(4, stop - o));
          lane_block<kBits, T, kWidth, kX>(
              m, o, count, from, x_bytes, to + (o - begin), ldy);
          if (m.fetch != nullptr) {
            m.fetch->pass(count, kX, rows);
          }
        }
      });
    }
  };
  switch (m.quant.group_size) {
    case 32:
      return run.template operator()<kBits>();
    case 64:
      return run.template operator()<kBits * 2>();
    default:
      return run.template operator()<kBits * 4>();
  }
}
