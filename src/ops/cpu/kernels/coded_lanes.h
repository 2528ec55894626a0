// Products of few activation rows with codes of 4 or 8 bits, by integer dots.
// Included inside an anonymous namespace, only where there is VNNI.
//
// An activation is a 16-bit integer with a scale for each weight group, so that
// the dot of a group is exact:
//   y = sum over groups of scale * x_scale * dot + bias * x_sum
// in f32, in an order that both kernels below keep: groups g = j mod C in
// turn for each class j, then the classes as (0 + 2) + (1 + 3). C is the number
// of groups in a vector of codes, at least 2.
//
// Few rows: lanes run along the columns of eight outputs, which reads memory as
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

// Groups g = j mod this many are summed apart.
inline int64_t group_classes(const Matrix& m) {
  return m.quant.group_size * m.quant.bits / 32 == 4 ? 4 : 2;
}

// acc += four products of each lane. In assembly: the compiler copies every sum
// before an intrinsic.
inline void dot_bytes(I& acc, I weights, I x) {
  asm("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(weights), "vm"(x));
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
  // The low bytes of 32 columns from column k, 16 bits each, and the high
  // bytes, with the sign that makes 256 high + low the column.
  I low(int64_t k) const {
    return i_pack16(f_to_i(values[k / 16]), f_to_i(values[k / 16 + 1]));
  }
  static I high(I low) {
    return _mm512_srai_epi16(_mm512_add_epi16(low, _mm512_set1_epi16(128)), 8);
  }
};

// ---- Lanes along the columns.
//
// A group's sums come in kWidth lanes, its columns' bits / 32. Those of eight
// outputs are added up so that a lane has one output and one group:
//   kWidth 4:  [group 0..3][output 0..3], and outputs 4..7 in another vector
//   otherwise: [output 0..3 | 4..7][even group, odd group][output of the four]
// where a vector of codes has a single group (kWidth 16), or half a one (32),
// activations have zeros for the other one.

constexpr int kLaneOutputs = 8;

// The order in which the weights of a block's rows are fetched, a line of each
// for every vector: step by step, `rows` bytes from line to line.
struct LaneFetch {
  const char* at;
  int64_t rows, step;
  int64_t turn;  // the byte of a row from which on `skip` is added
  int64_t skip;

  // Blocks lie side by side in memory. The next one, or a later one where they
  // are short, is fetched as it lies, which the hardware foresees. Of long
  // rows, whose lines share few sets of the first cache, each is fetched a
  // short way ahead; past its end, the row of the next block. Measured, as all
  // of this.
  LaneFetch(const std::byte* block, int64_t row_bytes)
      : at(reinterpret_cast<const char*>(block)) {
    constexpr int64_t kLongRow = 2048, kAhead = 1024, kLeast = 8192;
    int64_t next = kLaneOutputs * row_bytes;
    if (row_bytes <= kLongRow) {
      at += ceil_to(kLeast, next);
      rows = 64;
      step = kLaneOutputs * 64;
      turn = row_bytes;
      skip = 0;
    } else {
      at += kAhead;
      rows = row_bytes;
      step = 64;
      turn = row_bytes - kAhead;
      skip = next - row_bytes;
    }
  }
};

// For each vector of codes: the high bytes of its activations and the low ones,
// those of the even columns and of the odd ones apart for 4-bit codes, then the
// scale and the sum of the group of each lane.
template <int kBits>
constexpr int kByteStreams = 8 / kBits;

template <int kBits>
constexpr int64_t kLaneBlockBytes = (2 * kByteStreams<kBits> + 2) * kLanes * 4;

inline size_t lane_row_bytes(const Matrix& m) {
  int64_t blocks = (m.in * m.quant.bits / 32 + kLanes - 1) / kLanes;
  return size_t(
      blocks * (m.quant.bits == 4 ? kLaneBlockBytes<4> : kLaneBlockBytes<8>));
}

template <int kBits>
void lane_pack_row(const Matrix& m, const float* x, std::byte* out) {
  constexpr int kStreams = kByteStreams<kBits>;
  constexpr int64_t kBlock = kLanes * 32 / kBits;  // columns of a vector
  constexpr int64_t kVector = kLanes * 4;
  int64_t group = m.quant.group_size, width = group * kBits / 32;
  int64_t blocks = (m.in + kBlock - 1) / kBlock;
  for (int64_t b = 0; b < blocks; ++b) {
    std::byte* block = out + b * kLaneBlockBytes<kBits>;
    if (width >= kLanes) {
      i_store(block + 2 * kStreams * kVector, i_zero());
      i_store(block + (2 * kStreams + 1) * kVector, i_zero());
    } else if (b == blocks - 1) {
      __builtin_memset(block, 0, kLaneBlockBytes<kBits>);
    }
  }
  for (int64_t g = 0; g < m.in / group; ++g) {
    GroupCodes codes(x + g * group, group);
    for (int64_t k = 0; k < group; k += 32) {
      int64_t column = g * group + k;
      std::byte* to = out + column / kBlock * kLaneBlockBytes<kBits> +
                      column % kBlock / kStreams;
      I low = codes.low(k), high = codes.high(low);
      for (I bytes : {high, low}) {
        if constexpr (kBits == 8) {
          _mm256_storeu_si256(
              reinterpret_cast<__m256i*>(to), _mm512_cvtepi16_epi8(bytes));
        } else {
          auto* even = reinterpret_cast<__m128i*>(to);
          _mm_storeu_si128(even, _mm512_cvtepi32_epi8(bytes));
          _mm_storeu_si128(
              even + kVector / 16, _mm512_cvtepi32_epi8(i_shr32<16>(bytes)));
        }
        to += kStreams * kVector;
      }
    }
    // The vector that ends the group.
    int64_t block = ((g + 1) * width - 1) / kLanes;
    auto* scales = reinterpret_cast<float*>(
        out + block * kLaneBlockBytes<kBits> + 2 * kStreams * kVector);
    float* sums = scales + kLanes;
    const __m128 scale = _mm_set1_ps(codes.scale), sum = _mm_set1_ps(codes.sum);
    for (int64_t l = width == 4 ? g % 4 * 4 : g % 2 * 4; l < kLanes; l += 8) {
      _mm_storeu_ps(scales + l, scale);
      _mm_storeu_ps(sums + l, sum);
      if (width == 4) {
        break;
      }
    }
  }
}

// The scales and biases, 16 bits each, of `count` groups, at most kLanes, of
// eight outputs in the order of their sums: 16 scales and 16 biases for every
// two groups, or for every four groups and four outputs (kWidth 4).
template <int kWidth>
inline void lane_factors(
    const std::byte* const* scales,
    const std::byte* const* biases,
    int64_t offset,
    int64_t count,
    std::byte* out) {
  const I low = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13);
  const I high = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
  auto mask = __mmask16((1u << count) - 1);
  I v[kLaneOutputs];
#pragma GCC unroll 8
  for (int r = 0; r < kLaneOutputs; ++r) {
    v[r] = _mm512_inserti64x4(
        _mm512_castsi256_si512(
            _mm256_maskz_loadu_epi16(mask, scales[r] + offset)),
        _mm256_maskz_loadu_epi16(mask, biases[r] + offset),
        1);
  }
  // quads[q][p]: of outputs 4 q .. 4 q + 3, groups 2 p, 2 p + 1 and 8 more.
  I quads[2][4];
#pragma GCC unroll 2
  for (int q = 0; q < 2; ++q) {
    const I* r = v + 4 * q;
    I t0 = _mm512_unpacklo_epi16(r[0], r[1]);
    I t1 = _mm512_unpackhi_epi16(r[0], r[1]);
    I t2 = _mm512_unpacklo_epi16(r[2], r[3]);
    I t3 = _mm512_unpackhi_epi16(r[2], r[3]);
    quads[q][0] = _mm512_unpacklo_epi32(t0, t2);
    quads[q][1] = _mm512_unpackhi_epi32(t0, t2);
    quads[q][2] = _mm512_unpacklo_epi32(t1, t3);
    quads[q][3] = _mm512_unpackhi_epi32(t1, t3);
  }
  auto store = [&](int at, I index, I a, I b) {
    i_store(out + at * 64, _mm512_permutex2var_epi64(a, index, b));
  };
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    if constexpr (kWidth == 4) {
      // Groups 4 (i % 2) .. and 8 more, of outputs 4 (i / 2) ..
      const I* quad = quads[i / 2] + i % 2 * 2;
      store(i % 2 * 2 + i / 2, low, quad[0], quad[1]);
      store(4 + i % 2 * 2 + i / 2, high, quad[0], quad[1]);
    } else {
      store(i, low, quads[0][i], quads[1][i]);
      store(4 + i, high, quads[0][i], quads[1][i]);
    }
  }
}

// Each 128 bits of four vectors summed up: vector r in lane r of them.
inline I sum_quad(const I* d) {
  I t0 = i_add(
      _mm512_unpacklo_epi32(d[0], d[1]), _mm512_unpackhi_epi32(d[0], d[1]));
  I t1 = i_add(
      _mm512_unpacklo_epi32(d[2], d[3]), _mm512_unpackhi_epi32(d[2], d[3]));
  return i_add(_mm512_unpacklo_epi64(t0, t1), _mm512_unpackhi_epi64(t0, t1));
}

// acc: one vector, two for kWidth 4.
template <typename T, int kWidth>
inline void lane_accumulate(
    const I* dots, const std::byte* factors, F scale, F sum, F* acc) {
  I first = sum_quad(dots), last = sum_quad(dots + 4);
  auto add = [&](F& to, I sums, const std::byte* at) {
    to = f_fma(f_mul(i_to_f(sums), T::get(at)), scale, to);
    to = f_fma(T::get(at + 32), sum, to);
  };
  if constexpr (kWidth == 4) {
    add(acc[0], first, factors);
    add(acc[1], last, factors + 64);
  } else {
    I sums = i_add(
        _mm512_shuffle_i32x4(first, last, 0x88),
        _mm512_shuffle_i32x4(first, last, 0xdd));
    if constexpr (kWidth >= 16) {
      sums = i_add(sums, _mm512_shuffle_i32x4(sums, sums, 0xb1));
    }
    add(acc[0], sums, factors);
  }
}

// Stores outputs 0 .. count - 1.
template <int kWidth>
inline void lane_store(const F* acc, int count, float* y) {
  alignas(32) float sums[kLaneOutputs];
  if constexpr (kWidth == 4) {
    for (int q = 0; q < 2; ++q) {
      _mm_store_ps(sums + 4 * q, fold_to_four(acc[q]));
    }
  } else {
    // Even groups in 128-bit lanes 0 and 2, odd ones in 1 and 3.
    F both = f_add(acc[0], _mm512_shuffle_f32x4(acc[0], acc[0], 0xb1));
    _mm_store_ps(sums, _mm512_castps512_ps128(both));
    _mm_store_ps(sums + 4, _mm512_extractf32x4_ps(both, 2));
  }
  _mm256_mask_storeu_ps(y, __mmask8((1u << count) - 1), _mm256_load_ps(sums));
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
  constexpr int kStreams = kByteStreams<kBits>;
  constexpr int64_t kVector = kLanes * 4;
  // Vectors of factors: for every two groups, or twice for every four.
  constexpr int64_t kFactors = kLanes / 2 * kVector;
  int64_t groups = m.in / m.quant.group_size;
  int64_t row_bytes = int64_t(m.weight_stride);
  const std::byte *codes[kLaneOutputs], *scales[kLaneOutputs],
      *biases[kLaneOutputs];
#pragma GCC unroll 8
  for (int r = 0; r < kLaneOutputs; ++r) {
    // Rows past the end are computed again from the last one and not stored.
    size_t at = size_t(row + (r < count ? r : count - 1));
    codes[r] = m.weight + at * m.weight_stride;
    scales[r] = m.scales + at * m.scale_stride;
    biases[r] = m.biases + at * m.scale_stride;
  }
  LaneFetch fetch(codes[0], row_bytes);
  int64_t scales_ahead = 2 * kLaneOutputs * int64_t(m.scale_stride);
  F acc[kX][kWidth == 4 ? 2 : 1];
#pragma GCC unroll 4
  for (int i = 0; i < kX; ++i) {
    acc[i][0] = f_zero();
    if constexpr (kWidth == 4) {
      acc[i][1] = f_zero();
    }
  }
  int64_t at = 0;
  for (int64_t g = 0; g < groups; g += kLanes) {
    alignas(64) std::byte factors[kFactors];
    lane_factors<kWidth>(
        scales, biases, g * 2, min_of(kLanes, groups - g), factors);
#pragma GCC unroll 8
    for (int r = 0; r < kLaneOutputs; ++r) {
      const std::byte* s = scales[r] + g * 2 + scales_ahead;
      const std::byte* b = biases[r] + g * 2 + scales_ahead;
      _mm_prefetch(reinterpret_cast<const char*>(s), _MM_HINT_T0);
      _mm_prefetch(reinterpret_cast<const char*>(b), _MM_HINT_T0);
    }
    I held[kWidth == 32 ? kX : 1][kLaneOutputs];
    for (int64_t block = 0; block < kWidth && at < row_bytes; ++block) {
      I w[kLaneOutputs][kStreams];
      auto take = [&](int r, I v) {
        // Loaded once: rows of a file seldom lie at whole lines, so that a load
        // reads two of them.
        asm("" : "+v"(v));
        if constexpr (kBits == 8) {
          w[r][0] = v;
        } else {
          const I mask = i_set(0x0f0f0f0f);
          w[r][0] = i_and(v, mask);
          w[r][1] = i_and(i_shr16<4>(v), mask);
        }
      };
      if (row_bytes - at >= kVector) {
        const char* line = fetch.at;
        if (at >= fetch.turn) {
          line += fetch.skip;
        }
        fetch.at += fetch.step;
#pragma GCC unroll 8
        for (int r = 0; r < kLaneOutputs; ++r) {
          // With one row the second cache needs no copy: nothing is read twice.
          kX == 1 ? _mm_prefetch(line, _MM_HINT_NTA)
                  : _mm_prefetch(line, _MM_HINT_T0);
          line += fetch.rows;
          take(r, i_load(codes[r] + at));
        }
      } else {
#pragma GCC unroll 8
        for (int r = 0; r < kLaneOutputs; ++r) {
          take(r, i_load_part(codes[r] + at, row_bytes - at));
        }
      }
      at += kVector;
      bool ends = kWidth <= 16 || block % 2 == 1;
      const std::byte* factor = factors + (kWidth == 4    ? block * 2
                                           : kWidth == 8  ? block
                                           : kWidth == 16 ? block / 2
                                                          : block / 4) *
                                              kVector;
#pragma GCC unroll 4
      for (int i = 0; i < kX; ++i) {
        const std::byte* from = x + size_t(i) * x_bytes;
        I dots[kLaneOutputs];
        I high[kStreams], low[kStreams];
#pragma GCC unroll 2
        for (int s = 0; s < kStreams; ++s) {
          high[s] = i_load(from + s * kVector);
          low[s] = i_load(from + (kStreams + s) * kVector);
        }
#pragma GCC unroll 8
        for (int r = 0; r < kLaneOutputs; ++r) {
          I dot = i_zero();
          dot_bytes(dot, w[r][0], high[0]);
          if constexpr (kStreams == 2) {
            dot_bytes(dot, w[r][1], high[1]);
          }
          dot = i_shl32<8>(dot);
          dot_bytes(dot, w[r][0], low[0]);
          if constexpr (kStreams == 2) {
            dot_bytes(dot, w[r][1], low[1]);
          }
          if constexpr (kWidth == 32) {
            dot = ends ? i_add(dot, held[i][r]) : dot;
            held[i][r] = dot;
          }
          dots[r] = dot;
        }
        if (ends) {
          lane_accumulate<T, kWidth>(
              dots,
              factor,
              f_load(from + 2 * kStreams * kVector),
              f_load(from + (2 * kStreams + 1) * kVector),
              acc[i]);
        }
      }
      x += kLaneBlockBytes<kBits>;
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kX; ++i) {
    lane_store<kWidth>(acc[i], count, y + i * ldy);
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
  int64_t block = kBlockBytes / int64_t(m.weight_stride) / 8 * 8;
  block = rows <= kLaneRowsAtOnce ? end - begin : block < 8 ? 8 : block;
  auto run = [&]<int kWidth>() {
    for (int64_t first = begin; first < end; first += block) {
      int64_t stop = min_of(first + block, end);
      for_row_groups<kLaneRowsAtOnce>(rows, [&]<int kX>(int x_row) {
        const std::byte* from = x + size_t(x_row) * x_bytes;
        float* to = y + x_row * ldy;
        for (int64_t o = first; o < stop; o += kLaneOutputs) {
          int count = int(min_of(kLaneOutputs, stop - o));
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
