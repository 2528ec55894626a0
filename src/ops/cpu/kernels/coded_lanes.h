// Products of few activation rows with codes of 4 or 8 bits, by integer dots,
// and what they have in common with those of more rows (coded_strips.h).
// Included inside an anonymous namespace, only where there is VNNI.
//
// Activations are integers with scales such that the dot of a weight group is
// exact; how they are kept and multiplied is the matter of a class for each
// number of bits, Codes below (coded_nibbles.h, coded_bytes.h):
//   y = row_scale * sum over groups of scale * x_scale * dot + bias * x_sum
// in f32, in an order that both kernels keep: groups g = j mod C in turn for
// each class j, then the classes as (0 + 2) + (1 + 3). C is the number of
// groups in a vector of codes, at least 2.
//
// Few rows: lanes run along the columns of eight outputs, which reads memory as
// it lies (lane_*). More rows: blocks of 32 outputs are transposed so
// that lanes run along the outputs, and all rows are multiplied with a block
// while it lies in the first cache: weights are taken apart once, whatever the
// number of rows, and no sum crosses lanes (strip_*).

constexpr int kLaneRowsAtOnce = 4;

// Groups g = j mod this many are summed apart.
inline int64_t group_classes(const Matrix& m) {
  return m.quant.group_size * m.quant.bits / 32 == 4 ? 4 : 2;
}

// acc += four products of each lane. In assembly: the compiler copies every sum
// before an intrinsic.
inline void dot_bytes(I& acc, I weights, I x) {
  asm("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(weights), "vm"(x));
}

// A group's sums come in kWidth lanes, its columns' bits / 32. Those of eight
// outputs are added up so that a lane has one output and one group:
//   kWidth 4:  [group 0..3][output 0..3], and outputs 4..7 in another vector
//   otherwise: [output 0..3 | 4..7][even group, odd group][output of the four]
// where a vector of codes has a single group (kWidth 16), or half a one (32),
// lanes of the other group are left alone.

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

// The vectors of codes of a row, and its packed activations: for each of them
// Codes::kLaneBytes.
inline int64_t lane_blocks(const Matrix& m) {
  return (m.in * m.quant.bits / 32 + kLanes - 1) / kLanes;
}

// Stores a value of group g, whose lanes are in a vector at `out`.
inline void lane_store_group(
    const Matrix& m, int64_t g, float value, std::byte* out) {
  int64_t width = m.quant.group_size * m.quant.bits / 32;
  auto* lanes = reinterpret_cast<float*>(out);
  if (width >= kLanes) {
    f_store(lanes, f_set(value));
    return;
  }
  const __m128 four = _mm_set1_ps(value);
  if (width == 4) {
    _mm_storeu_ps(lanes + g % 4 * 4, four);
  } else {
    _mm_storeu_ps(lanes + g % 2 * 4, four);
    _mm_storeu_ps(lanes + g % 2 * 4 + 8, four);
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

// to += of the lanes in `mask`.
inline F lane_fma(__mmask16 mask, F a, F b, F to) {
  return _mm512_mask3_fmadd_ps(a, b, to, mask);
}

// acc: one vector, two for kWidth 4. `first`, `last`: sums of outputs 0..3 and
// 4..7 in each 128 bits, of group `group`, `sum` the activations' ones.
template <typename Codes, typename T, int kWidth>
inline void lane_accumulate(
    I first,
    I last,
    int64_t group,
    const std::byte* factors,
    const std::byte* x,
    F sum,
    F* acc) {
  if constexpr (kWidth == 4) {
    auto add = [&](F& to, I sums, const std::byte* at) {
      to = f_fma(Codes::scaled(i_to_f(sums), x), T::get(at), to);
      to = f_fma(T::get(at + 32), sum, to);
    };
    add(acc[0], first, factors);
    add(acc[1], last, factors + 64);
  } else {
    I sums = i_add(
        _mm512_shuffle_i32x4(first, last, 0x88),
        _mm512_shuffle_i32x4(first, last, 0xdd));
    F scale = T::get(factors), bias = T::get(factors + 32);
    if constexpr (kWidth == 8) {
      acc[0] = f_fma(Codes::scaled(i_to_f(sums), x), scale, acc[0]);
      acc[0] = f_fma(bias, sum, acc[0]);
    } else {
      sums = i_add(sums, _mm512_shuffle_i32x4(sums, sums, 0xb1));
      __mmask16 lanes = group % 2 == 0 ? 0x0f0f : 0xf0f0;
      acc[0] = lane_fma(lanes, Codes::scaled(i_to_f(sums), x), scale, acc[0]);
      acc[0] = lane_fma(lanes, bias, sum, acc[0]);
    }
  }
}

// Stores outputs 0 .. count - 1.
template <int kWidth>
inline void lane_store(const F* acc, float row_scale, int count, float* y) {
  __m128 first, last;
  if constexpr (kWidth == 4) {
    first = fold_to_four(acc[0]);
    last = fold_to_four(acc[1]);
  } else {
    // Even groups in 128-bit lanes 0 and 2, odd ones in 1 and 3.
    F both = f_add(acc[0], _mm512_shuffle_f32x4(acc[0], acc[0], 0xb1));
    first = _mm512_castps512_ps128(both);
    last = _mm512_extractf32x4_ps(both, 2);
  }
  _mm256_mask_storeu_ps(
      y,
      __mmask8((1u << count) - 1),
      _mm256_mul_ps(_mm256_set_m128(last, first), _mm256_set1_ps(row_scale)));
}

template <typename Codes, typename T, int kWidth, int kX>
void lane_block(
    const Matrix& m,
    int64_t row,
    int count,
    const std::byte* x,
    size_t x_bytes,
    FetchList::Lines later,
    float* y,
    int64_t ldy) {
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
    I held[kWidth == 32 ? kX : 1][2];  // of the first half of a group
    for (int64_t block = 0; block < kWidth && at < row_bytes; ++block) {
      typename Codes::Weights w[kLaneOutputs];
      auto take = [&](int r, I v) {
        // Loaded once: rows of a file seldom lie at whole lines, so that a load
        // reads two of them.
        asm("" : "+v"(v));
        w[r] = Codes::take(v);
      };
      if (row_bytes - at >= kVector) {
        const char* line = fetch.at;
        if (at >= fetch.turn) {
          line += fetch.skip;
        }
        fetch.at += fetch.step;
        for (int64_t i = 0; i < later.each; ++i) {
          _mm_prefetch(reinterpret_cast<const char*>(*later.at++), _MM_HINT_T0);
        }
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
      const std::byte* factor = factors + (kWidth == 4    ? block * 2
                                           : kWidth == 8  ? block
                                           : kWidth == 16 ? block / 2
                                                          : block / 4) *
                                              kVector;
#pragma GCC unroll 4
      for (int i = 0; i < kX; ++i) {
        const std::byte* from = x + size_t(i) * x_bytes;
        I first, last;
        Codes::lane_sums(w, from, &first, &last);
        if constexpr (kWidth == 32) {
          if (block % 2 == 0) {
            held[i][0] = first;
            held[i][1] = last;
            continue;
          }
          first = i_add(first, held[i][0]);
          last = i_add(last, held[i][1]);
        }
        lane_accumulate<Codes, T, kWidth>(
            first,
            last,
            block * kLanes / kWidth,
            factor,
            from,
            f_load(from + Codes::kLaneSums),
            acc[i]);
      }
      x += Codes::kLaneBytes;
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kX; ++i) {
    lane_store<kWidth>(
        acc[i], Codes::row_scale(x + size_t(i) * x_bytes), count, y + i * ldy);
  }
}

template <typename Codes, typename T>
void lane_decode(
    const Matrix& m,
    int64_t begin,
    int64_t end,
    const std::byte* x,
    int rows,
    float* y,
    int64_t ldy) {
  size_t x_bytes = Codes::lane_row_bytes(m);
  // Weights that stay in the second cache while all rows use them.
  constexpr int64_t kBlockBytes = 128 * 1024;
  int64_t block = kBlockBytes / int64_t(m.weight_stride) / 8 * 8;
  block = rows <= kLaneRowsAtOnce ? end - begin : block < 8 ? 8 : block;
  // Whole vectors of a row, the steps of a block.
  int64_t vectors = int64_t(m.weight_stride) / (kLanes * 4);
  auto run = [&]<int kWidth>() {
    for (int64_t first = begin; first < end; first += block) {
      int64_t stop = min_of(first + block, end);
      for_row_groups<kLaneRowsAtOnce>(rows, [&]<int kX>(int x_row) {
        const std::byte* from = x + size_t(x_row) * x_bytes;
        float* to = y + x_row * ldy;
        for (int64_t o = first; o < stop; o += kLaneOutputs) {
          int count = int(min_of(kLaneOutputs, stop - o));
          FetchList::Lines later;
          if (m.fetch != nullptr && vectors > 0) {
            later = m.fetch->take(count, kX, rows, vectors);
          }
          lane_block<Codes, T, kWidth, kX>(
              m, o, count, from, x_bytes, later, to + (o - begin), ldy);
        }
      });
    }
  };
  switch (m.quant.group_size) {
    case 32:
      return run.template operator()<Codes::kBits>();
    case 64:
      return run.template operator()<Codes::kBits * 2>();
    default:
      return run.template operator()<Codes::kBits * 4>();
  }
}
