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
// four rows from `first`. quads[p]: of groups 2 p, 2 p + 1 and 8 more.
inline void lane_quads(
    const LaneRows& scales,
    const LaneRows& biases,
    int first,
    int64_t count,
    I* quads) {
  auto mask = __mmask16((1u << count) - 1);
  I v[4];
#pragma GCC unroll 4
  for (int r = 0; r < 4; ++r) {
    v[r] = _mm512_inserti64x4(
        _mm512_castsi256_si512(
            _mm256_maskz_loadu_epi16(mask, scales[first + r])),
        _mm256_maskz_loadu_epi16(mask, biases[first + r]),
        1);
  }
  I t0 = _mm512_unpacklo_epi16(v[0], v[1]);
  I t1 = _mm512_unpackhi_epi16(v[0], v[1]);
  I t2 = _mm512_unpacklo_epi16(v[2], v[3]);
  I t3 = _mm512_unpackhi_epi16(v[2], v[3]);
  quads[0] = _mm512_unpacklo_epi32(t0, t2);
  quads[1] = _mm512_unpackhi_epi32(t0, t2);
  quads[2] = _mm512_unpacklo_epi32(t1, t3);
  quads[3] = _mm512_unpackhi_epi32(t1, t3);
}

// Qwords of two vectors of quads: of the lower eight groups, of the others.
inline I lane_low_groups() {
  return _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13);
}
inline I lane_high_groups() {
  return _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
}

// The factors of `count` groups of eight outputs in the order of their sums: 16
// scales and 16 biases for every two groups, or for every four groups and four
// outputs (kWidth 4).
template <int kWidth>
inline void lane_factors(
    const LaneRows& scales,
    const LaneRows& biases,
    int64_t count,
    std::byte* out) {
  const I low = lane_low_groups(), high = lane_high_groups();
  I quads[2][4];
  lane_quads(scales, biases, 0, count, quads[0]);
  lane_quads(scales, biases, 4, count, quads[1]);
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

// The same of four outputs: 16 scales and 16 biases for every four groups.
inline void lane_factors_of_four(
    const LaneRows& scales,
    const LaneRows& biases,
    int64_t count,
    std::byte* out) {
  const I low = lane_low_groups(), high = lane_high_groups();
  I quads[4];
  lane_quads(scales, biases, 0, count, quads);
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    I a = quads[2 * i], b = quads[2 * i + 1];
    i_store(out + i * 64, _mm512_permutex2var_epi64(a, low, b));
    i_store(out + (2 + i) * 64, _mm512_permutex2var_epi64(a, high, b));
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

// Stores `count` outputs from the one at `begin`.
template <int kWidth>
inline void lane_store(
    const F* acc, float row_scale, int begin, int count, float* y) {
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
  auto stored = __mmask8((1u << count) - 1);
  __m256 outputs =
      _mm256_mul_ps(_mm256_set_m128(last, first), _mm256_set1_ps(row_scale));
  _mm256_mask_storeu_ps(
      y, stored, _mm256_maskz_compress_ps(__mmask8(stored << begin), outputs));
}

// kAsItLies: what is fetched meanwhile, line by line, begins at `ahead`. A
// function of its own: among all others the compiler runs out of registers.
template <typename Codes, typename T, int kWidth, int kX, bool kAsItLies>
__attribute__((noinline)) void lane_block(
    const Matrix& m,
    int64_t row,
    int count,
    FirstRows ahead,
    const std::byte* x,
    size_t x_bytes,
    FetchList::Lines later,
    float* y,
    int64_t ldy) {
  constexpr int64_t kVector = kLanes * 4;
  // Vectors of factors: for every two groups, or twice for every four.
  constexpr int64_t kFactors = kLanes / 2 * kVector;
  int64_t groups = m.in / m.quant.group_size;
  int64_t row_bytes = m.in * m.quant.bits / 8;
  // Near the end of the matrix rows before are computed again, not stored.
  int64_t top = min_of(row, m.out - kLaneOutputs);
  LaneRows codes(
      m.weight + size_t(top) * m.weight_stride, int64_t(m.weight_stride));
  auto stride = int64_t(m.scale_stride);
  LaneRows scales(m.scales + top * stride, stride);
  LaneRows biases(m.biases + top * stride, stride);
  LaneFetch fetch(codes.first, row_bytes);  // unless kAsItLies
  int64_t scales_ahead = 2 * kLaneOutputs * stride;
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
    lane_factors<kWidth>(scales, biases, min_of(kLanes, groups - g), factors);
    if constexpr (kAsItLies) {
      lane_fetch_factors<kLaneOutputs>(ahead);
    } else {
#pragma GCC unroll 8
      for (int r = 0; r < kLaneOutputs; ++r) {
        lane_fetch_for<kX>(scales[r] + scales_ahead);
        lane_fetch_for<kX>(biases[r] + scales_ahead);
      }
    }
    scales.advance(2 * kLanes);
    biases.advance(2 * kLanes);
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
        const std::byte* line = fetch.at;
        if (!kAsItLies && at >= fetch.turn) {
          line += fetch.skip;
        }
        fetch.at += fetch.step;
        for (int64_t i = 0; i < later.each; ++i) {
          _mm_prefetch(reinterpret_cast<const char*>(*later.at++), _MM_HINT_T0);
        }
#pragma GCC unroll 8
        for (int r = 0; r < kLaneOutputs; ++r) {
          if constexpr (kAsItLies) {
            lane_fetch_once(ahead.weight + r * kVector);
          } else {
            lane_fetch_for<kX>(line);
            line += fetch.rows;
          }
          take(r, i_load(codes[r]));
        }
        if constexpr (kAsItLies) {
          ahead.weight += kLaneOutputs * kVector;
        }
      } else {
#pragma GCC unroll 8
        for (int r = 0; r < kLaneOutputs; ++r) {
          take(r, i_load_part(codes[r], row_bytes - at));
        }
      }
      at += kVector;
      codes.advance(kVector);
      const std::byte* factor = factors + (kWidth == 4    ? block * 2
                                           : kWidth == 8  ? block
                                           : kWidth == 16 ? block / 2
                                                          : block / 4) *
                                              kVector;
#pragma GCC unroll 4
      for (int i = 0; i < kX; ++i) {
        const std::byte* from = x + size_t(i) * x_bytes;
        I first = Codes::lane_sums(w, from);
        I last = Codes::lane_sums(w + 4, from);
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
        acc[i],
        Codes::row_scale(x + size_t(i) * x_bytes),
        int(row - top),
        count,
        y + i * ldy);
  }
}

// lane_block for one row of activations and four rows of weights: two
// vectors of each at a time, so that the block, which is fetched as it lies, is
// still in the first cache when it is read. kWidth 8; whole pairs of vectors.
template <typename Codes, typename T>
__attribute__((noinline)) void lane_long_block(
    const Matrix& m,
    int64_t row,
    int count,
    FirstRows ahead,
    const std::byte* x,
    float* y) {
  constexpr int64_t kVector = kLanes * 4;
  constexpr int kRows = 4;
  int64_t groups = m.in / m.quant.group_size;
  int64_t top = min_of(row, m.out - kRows);
  auto rows = [&](const std::byte* at, size_t stride) {
    return LaneRows(at + size_t(top) * stride, int64_t(stride));
  };
  LaneRows codes = rows(m.weight, m.weight_stride);
  LaneRows scales = rows(m.scales, m.scale_stride);
  LaneRows biases = rows(m.biases, m.scale_stride);
  __m256 acc = _mm256_setzero_ps();  // [even group, odd group][output]
  for (int64_t g = 0; g < groups; g += kLanes) {
    alignas(64) std::byte factors[kLanes / 4 * kVector];
    int64_t count_of_groups = min_of(kLanes, groups - g);
    lane_factors_of_four(scales, biases, count_of_groups, factors);
    lane_fetch_factors<kRows>(ahead);
    scales.advance(2 * kLanes);
    biases.advance(2 * kLanes);
    const std::byte* factor = factors;
    for (int64_t j = 0; j < count_of_groups; j += 4) {
      typename Codes::Weights w[2 * kRows];
#pragma GCC unroll 8
      for (int r = 0; r < 2 * kRows; ++r) {
        lane_fetch_once(ahead.weight + r * kVector);
        I v = i_load(codes[r % kRows] + r / kRows * kVector);
        asm("" : "+v"(v));  // loaded once, see lane_block
        w[r] = Codes::take(v);
      }
      ahead.weight += 2 * kRows * kVector;
      codes.advance(2 * kVector);
      const std::byte* next = x + Codes::kLaneBytes;
      I first = Codes::lane_sums(w, x);
      I last = Codes::lane_sums(w + kRows, next);
      // [group][output]
      F sums = i_to_f(i_add(
          _mm512_shuffle_i32x4(first, last, 0x88),
          _mm512_shuffle_i32x4(first, last, 0xdd)));
      F scale = T::get(factor), bias = T::get(factor + 32);
      auto add = [&](int half, const std::byte* from) {
        auto part = [&](F v) {
          return half == 0 ? _mm512_castps512_ps256(v)
                           : _mm512_extractf32x8_ps(v, 1);
        };
        __m256 scaled = _mm512_castps512_ps256(
            Codes::scaled(_mm512_castps256_ps512(part(sums)), from));
        acc = _mm256_fmadd_ps(scaled, part(scale), acc);
        __m256 of_groups = _mm256_loadu_ps(
            reinterpret_cast<const float*>(from + Codes::kLaneSums));
        acc = _mm256_fmadd_ps(part(bias), of_groups, acc);
      };
      add(0, x);
      add(1, next);
      factor += kVector;
      x += 2 * Codes::kLaneBytes;
    }
  }
  __m128 outputs =
      _mm_add_ps(_mm256_castps256_ps128(acc), _mm256_extractf128_ps(acc, 1));
  outputs = _mm_mul_ps(outputs, _mm_set1_ps(Codes::row_scale(x)));
  auto stored = __mmask8((1u << count) - 1);
  _mm_mask_storeu_ps(
      y,
      stored,
      _mm_maskz_compress_ps(__mmask8(stored << (row - top)), outputs));
}

// What is fetched from while rows of [., end) are computed, in place of `row`.
inline FirstRows lane_ahead(const Matrix& m, int64_t row, int64_t end) {
  const FirstRows* after = m.after;
  if (row < end || after == nullptr || after->scales == nullptr) {
    return rows_from(m, row);
  }
  FirstRows rows = *after;
  auto passed = size_t(row - end);
  rows.weight += passed * rows.weight_stride;
  rows.scales += passed * rows.scale_stride;
  rows.biases += passed * rows.scale_stride;
  return rows;
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
  if (m.out < kLaneOutputs) {
    // Row by row, each of them as eight.
    Matrix row = m;
    row.out = kLaneOutputs;
    row.weight_stride = row.scale_stride = 0;
    for (int64_t o = begin; o < end; ++o) {
      row.weight = m.weight + size_t(o) * m.weight_stride;
      row.scales = m.scales + size_t(o) * m.scale_stride;
      row.biases = m.biases + size_t(o) * m.scale_stride;
      lane_decode<Codes, T>(row, 0, 1, x, rows, y + (o - begin), ldy);
    }
    return;
  }
  size_t x_bytes = Codes::lane_row_bytes(m);
  // Weights that stay in the second cache while all rows use them.
  constexpr int64_t kBlockBytes = 128 * 1024;
  int64_t row_bytes = m.in * m.quant.bits / 8;
  int64_t block = kBlockBytes / row_bytes / 8 * 8;
  block = rows <= kLaneRowsAtOnce ? end - begin : block < 8 ? 8 : block;
  // Whole vectors of a row, the steps of a block.
  int64_t vectors = row_bytes / (kLanes * 4);
  // The next block is fetched, or a later one where they are short. Measured.
  constexpr int64_t kLeastAhead = 8192;
  int64_t rows_ahead =
      ceil_to(kLeastAhead, kLaneOutputs * row_bytes) / row_bytes;
  auto run = [&]<int kWidth>() {
    for (int64_t first = begin; first < end; first += block) {
      int64_t stop = min_of(first + block, end);
      for_row_groups<kLaneRowsAtOnce>(rows, [&]<int kX>(int x_row) {
        const std::byte* from = x + size_t(x_row) * x_bytes;
        float* to = y + x_row * ldy;
        auto each = [&](int outputs, auto compute) {
          for (int64_t o = first; o < stop; o += outputs) {
            compute(o, int(min_of(outputs, stop - o)), to + (o - begin));
          }
        };
        // Lines for later that a block fetches at each of its vectors.
        auto later = [&](int count) {
          return m.fetch != nullptr && vectors > 0
                     ? m.fetch->take(count, kX, rows, vectors)
                     : FetchList::Lines{};
        };
        if constexpr (kX == 1 && kWidth == 8) {
          if (row_bytes > kFourRowsFrom && row_bytes <= kFourRowsTo &&
              row_bytes % (2 * kLanes * 4) == 0) {
            constexpr int kOutputs = kLaneOutputs / 2;
            int64_t fetched = (kFourRowsAhead + row_bytes - 1) / row_bytes;
            fetched = fetched < kOutputs ? kOutputs : fetched;
            each(kOutputs, [&](int64_t o, int count, float* out) {
              FirstRows ahead = lane_ahead(m, o + fetched, end);
              lane_long_block<Codes, T>(m, o, count, ahead, from, out);
              if (m.fetch != nullptr) {
                m.fetch->pass(count, kX, rows);
              }
            });
            return;
          }
        }
        if constexpr (kX == 1) {
          if (row_bytes <= kLongRow) {
            each(kLaneOutputs, [&](int64_t o, int count, float* out) {
              FirstRows ahead = lane_ahead(m, o + rows_ahead, end);
              lane_block<Codes, T, kWidth, 1, true>(
                  m, o, count, ahead, from, x_bytes, later(count), out, ldy);
            });
            return;
          }
        }
        each(kLaneOutputs, [&](int64_t o, int count, float* out) {
          lane_block<Codes, T, kWidth, kX, false>(
              m, o, count, {}, from, x_bytes, later(count), out, ldy);
        });
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
