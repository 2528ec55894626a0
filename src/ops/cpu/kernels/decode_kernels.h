// Products of few activation rows: each vector of weights is read once for up
// to eight rows. Included inside an anonymous namespace.

// Activation rows are packed in chunks of at most kMaxX rows, the rows of a
// chunk side by side in the order in which a block reads them.
struct Chunk {
  int first, rows;
};

// The first chunk brings the weights from memory. With 16-bit products it has
// two rows only, which leave time for that; more work for each byte hides no
// more of it (measured), and the other chunks find the weights in the cache.
inline int first_chunk(const Matrix& m, int rows) {
  int most = m.decode == Arithmetic::int16 ? 2 : kMaxX;
  int chunks = (rows + kMaxX - 1) / kMaxX;
  int even = (rows + chunks - 1) / chunks;
  return even < most ? even : most;
}

inline int chunk_count(const Matrix& m, int rows) {
  return 1 + (rows - first_chunk(m, rows) + kMaxX - 1) / kMaxX;
}

inline Chunk chunk_at(const Matrix& m, int index, int rows) {
  int start = first_chunk(m, rows);
  if (index == 0) {
    return {0, start};
  }
  int chunks = chunk_count(m, rows) - 1, rest = rows - start;
  int first = rest * (index - 1) / chunks;
  return {start + first, rest * index / chunks - first};
}

inline Chunk chunk_of(const Matrix& m, int row, int rows) {
  for (int c = 0;; ++c) {
    Chunk chunk = chunk_at(m, c, rows);
    if (row < chunk.first + chunk.rows) {
      return chunk;
    }
  }
}

// Makes the compiler load activations again for the next row of weights: kept
// ones would not leave registers for the sums.
template <int kX>
inline void forget_loads() {
  if constexpr (kX > 2) {
    asm volatile("" ::: "memory");
  }
}

// How far ahead of the loads weights are fetched, in bytes: whole blocks of
// `rows` weight rows, at least `least`, what arrives during one access.
inline int64_t fetch_distance(const Matrix& m, int rows, int64_t least) {
  int64_t block = int64_t(m.weight_stride) * rows;
  return (least + block - 1) / block * block;
}

// ---- f32: weights converted in order, one fused multiply-add a vector.

inline size_t f32_row_bytes(const Matrix& m) {
  return size_t(ceil_to(m.in, 16)) * sizeof(float);
}

// [vector of columns][row][lane]
inline void f32_pack_row(
    const Matrix& m, const float* x, int slot, int rows, std::byte* out) {
  std::byte* at = out + slot * kLanes * 4;
  for (int64_t k = 0; k < m.in; k += kLanes, at += rows * kLanes * 4) {
    int64_t left = m.in - k;
    F v = left >= kLanes ? f_load(x + k) : f_load_part(x + k, left);
    f_store(reinterpret_cast<float*>(at), v);
  }
}

template <typename Reader, int kRows, int kX>
void f32_block(
    const Matrix& m,
    int64_t row,
    int count,
    const std::byte* x,
    float* y,
    int64_t ldy) {
  // Rows past the end are computed again from the last one and not stored.
  auto row_at = [&](int r) { return row + (r < count ? r : count - 1); };
  Reader readers[4] = {
      Reader(m, row_at(0)),
      Reader(m, row_at(1 % kRows)),
      Reader(m, row_at(2 % kRows)),
      Reader(m, row_at(3 % kRows))};
  F acc[kX][kRows];
  for (auto& a : acc) {
    for (F& v : a) {
      v = f_zero();
    }
  }
  int64_t group = Reader::kGroups ? m.quant.group_size : m.in;
  int64_t ahead = fetch_distance(m, kRows, 4096);
  for (int64_t g = 0, k = 0; k < m.in; ++g) {
    for (int r = 0; r < kRows; ++r) {
      readers[r].group(g);
    }
    int64_t end = k + group;
    for (; k + kLanes <= end; k += kLanes) {
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        F w = readers[r].at(k);
        _mm_prefetch(
            static_cast<const char*>(readers[r].address(k)) + ahead,
            _MM_HINT_T0);
#pragma GCC unroll 8
        for (int i = 0; i < kX; ++i) {
          acc[i][r] = f_fma(w, f_load(x + i * kLanes * 4), acc[i][r]);
        }
      }
      x += kX * kLanes * 4;
    }
    if (k < end) {
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        F w = readers[r].part(k, end - k);
#pragma GCC unroll 8
        for (int i = 0; i < kX; ++i) {
          acc[i][r] = f_fma(w, f_load(x + i * kLanes * 4), acc[i][r]);
        }
      }
      k = end;
    }
  }
  store_sums<kRows, kX>(acc, count, y, ldy);
}

// ---- int16: codes times 16-bit activations, exact within a vector.
//
// A vector of codes has kLanes 32-bit words; shifted by s * bits and masked to
// 16-bit lanes it gives stream s. Activations are stored in that order with a
// scale for each 32-bit lane, then come the sums of each weight group for the
// biases:
//   y = sum over vectors of scale[lane] * x_scale[lane] * dot[lane]
//     + sum over groups of bias * x_sum

constexpr int64_t kScaleGroup = 32;  // activations that share a scale

// For each kLanes weight groups: their sums, then for each vector of codes in
// them its streams and its lane scales; each [row][vector].
struct Int16Layout {
  int64_t blocks;        // vectors of codes in a row
  int64_t chunk_groups;  // vectors of sums
  int64_t width;         // lanes of a weight group
  int streams;

  explicit Int16Layout(const Matrix& m) {
    int64_t groups = m.in / m.quant.group_size;
    blocks = (m.in * m.quant.bits / 32 + kLanes - 1) / kLanes;
    chunk_groups = (groups + kLanes - 1) / kLanes;
    width = m.quant.group_size * m.quant.bits / 32;
    streams = 16 / m.quant.bits;
  }
  size_t row_bytes() const {
    return size_t((chunk_groups + blocks * (streams + 1)) * kLanes * 4);
  }
  // Offsets in vectors, of one row.
  int64_t sums_at(int64_t chunk) const {
    return chunk + chunk * width * (streams + 1);
  }
  int64_t block_at(int64_t block) const {
    return block / width + 1 + block * (streams + 1);
  }
};

template <int kBits>
void int16_pack_row_of(
    const Matrix& m, const float* x, int slot, int rows, std::byte* out) {
  constexpr int kStreams = 16 / kBits;
  constexpr int kBlock = kLanes * 32 / kBits;  // columns in a vector of codes
  constexpr int kLaneColumns = 32 / kBits;
  constexpr int64_t kVector = kLanes * 4;
  Int16Layout layout(m);
  // Vector v of one row is the row's in row `v` of the side by side ones.
  auto vector = [&](int64_t v) { return out + (v * rows + slot) * kVector; };
  for (int64_t c = 0; c < layout.chunk_groups; ++c) {
    f_store(reinterpret_cast<float*>(vector(layout.sums_at(c))), f_zero());
  }
  int64_t per_sum = m.quant.group_size / kScaleGroup;
  for (int64_t b = 0; b < layout.blocks; ++b) {
    int64_t k0 = b * kBlock, at = layout.block_at(b);
    alignas(64) int16_t natural[kBlock];
    auto* scales = reinterpret_cast<float*>(vector(at + kStreams));
    for (int64_t j = 0; j < kBlock; j += kScaleGroup) {
      float* lane = scales + j / kLaneColumns;
      if (k0 + j >= m.in) {
        __builtin_memset(natural + j, 0, kScaleGroup * 2);
        for (int l = 0; l < kScaleGroup / kLaneColumns; ++l) {
          lane[l] = 0;
        }
        continue;
      }
      F v[kScaleGroup / kLanes], most = f_zero(), sum = f_zero();
      for (int i = 0; i < kScaleGroup / kLanes; ++i) {
        v[i] = f_load(x + k0 + j + i * kLanes);
        most = f_max(most, f_abs(v[i]));
      }
      float top = f_max_lane(most);
      float scale = top / 32767;
      F inverse = f_set(top > 0 ? 32767 / top : 0);
      for (int i = 0; i < kScaleGroup / kLanes; ++i) {
        v[i] = f_round(f_mul(v[i], inverse));
        sum = f_add(sum, v[i]);
      }
      for (int i = 0; i < kScaleGroup / kLanes; i += 2) {
        i_store(
            natural + j + i * kLanes, i_pack16(f_to_i(v[i]), f_to_i(v[i + 1])));
      }
      for (int l = 0; l < kScaleGroup / kLaneColumns; ++l) {
        lane[l] = scale;
      }
      // Of the rounded values, so that their errors meet the weight itself and
      // not scale * code, which is larger.
      float total = _mm_cvtss_f32(sum_lanes(sum, sum, sum, sum));
      int64_t group = (k0 + j) / kScaleGroup / per_sum;
      auto* sums =
          reinterpret_cast<float*>(vector(layout.sums_at(group / kLanes)));
      sums[group % kLanes] += scale * total;
    }
    for (int s = 0; s < kStreams; ++s) {
      alignas(64) int16_t stream[kLanes * 2];
      for (int w = 0; w < kLanes * 2; ++w) {
        stream[w] = natural[w * kStreams + s];
      }
      i_store(vector(at + s), i_load(stream));
    }
  }
}

// index[b][l]: the group, within kLanes groups, that lane l of block b is in,
// where a group has kWidth lanes.
template <int kWidth>
struct GroupIndex {
  int32_t at[kWidth][kLanes];
  constexpr GroupIndex() : at() {
    for (int b = 0; b < kWidth; ++b) {
      for (int l = 0; l < kLanes; ++l) {
        at[b][l] = (b * kLanes + l) / kWidth;
      }
    }
  }
};
template <int kWidth>
constexpr GroupIndex<kWidth> kGroupIndex;

inline const int32_t* group_index(int64_t width) {
  switch (width) {
    case 4:
      return kGroupIndex<4>.at[0];
    case 8:
      return kGroupIndex<8>.at[0];
    case 16:
      return kGroupIndex<16>.at[0];
    default:
      return kGroupIndex<32>.at[0];
  }
}

template <int kBits, int kStream>
inline I stream_codes(I v) {
  I shifted = kStream == 0 ? v : i_shr16<kStream * kBits>(v);
  if constexpr ((kStream + 1) * kBits == 16) {
    return shifted;
  } else {
    return i_and(shifted, i_set(((1 << kBits) - 1) * 0x10001));
  }
}

template <int kBits, typename T, int kRows, int kX>
void int16_block(
    const Matrix& m,
    int64_t row,
    int count,
    const std::byte* x,
    float* y,
    int64_t ldy) {
  constexpr int kStreams = 16 / kBits;
  constexpr int64_t kVector = kLanes * 4;
  // Rows of weights that use a loaded vector of activations, as far as there
  // are registers.
  constexpr int kTogether = kLanes == 16 || kX <= 2 ? 2 : 1;
  Int16Layout layout(m);
  int64_t groups = m.in / m.quant.group_size;
  int64_t row_bytes = int64_t(m.weight_stride);
  const int32_t* index = group_index(layout.width);
  // Rows past the end are computed again from the last one and not stored.
  const std::byte *codes[kRows], *scales[kRows], *biases[kRows];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    size_t at = size_t(row + (r < count ? r : count - 1));
    codes[r] = m.weight + at * m.weight_stride;
    scales[r] = m.scales + at * m.scale_stride;
    biases[r] = m.biases + at * m.scale_stride;
  }
  // Measured: where there is much work for each byte, hints are best close to
  // the loads, beside the streams that the hardware follows.
  int64_t blocks_ahead = fetch_distance(m, kRows, kX == 1 ? 8192 : 4096);
  int64_t ahead = kX > 2 ? 256 : blocks_ahead;
  int64_t scales_ahead = blocks_ahead / row_bytes * int64_t(m.scale_stride);

  F acc[kX][kRows];
#pragma GCC unroll 8
  for (int i = 0; i < kX; ++i) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      acc[i][r] = f_zero();
    }
  }
  int64_t left = row_bytes;  // bytes of codes
  for (int64_t g = 0; g < groups; g += kLanes) {
    F scale[kRows];
    bool whole = groups - g >= kLanes;
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const std::byte* s = scales[r] + g * T::kBytes;
      const std::byte* b = biases[r] + g * T::kBytes;
      scale[r] = whole ? T::get(s) : T::part(s, groups - g);
      F bias = whole ? T::get(b) : T::part(b, groups - g);
      _mm_prefetch(
          reinterpret_cast<const char*>(s) + scales_ahead, _MM_HINT_T0);
      _mm_prefetch(
          reinterpret_cast<const char*>(b) + scales_ahead, _MM_HINT_T0);
#pragma GCC unroll 8
      for (int i = 0; i < kX; ++i) {
        acc[i][r] = f_fma(bias, f_load(x + i * kVector), acc[i][r]);
      }
    }
    x += kX * kVector;
    const int32_t* lanes_at = index;
    for (int64_t b = 0; b < layout.width && left > 0; ++b) {
      I lanes = i_load(lanes_at);
      lanes_at += kLanes;
#pragma GCC unroll 2
      for (int r0 = 0; r0 < kRows; r0 += kTogether) {
        forget_loads<kX>();
        I v[kTogether];
#pragma GCC unroll 2
        for (int r = 0; r < kTogether; ++r) {
          v[r] = left >= kVector ? i_load(codes[r0 + r])
                                 : i_load_part(codes[r0 + r], left);
          _mm_prefetch(
              reinterpret_cast<const char*>(codes[r0 + r]) + ahead,
              _MM_HINT_T0);
          codes[r0 + r] += kVector;
        }
        I dot[kX][kTogether];
        auto add_stream = [&]<int kStream>() {
          I w[kTogether];
#pragma GCC unroll 2
          for (int r = 0; r < kTogether; ++r) {
            w[r] = stream_codes<kBits, kStream>(v[r]);
          }
#pragma GCC unroll 8
          for (int i = 0; i < kX; ++i) {
            I xv = i_load(x + (kStream * kX + i) * kVector);
#pragma GCC unroll 2
            for (int r = 0; r < kTogether; ++r) {
              dot[i][r] =
                  i_dot16(kStream == 0 ? i_zero() : dot[i][r], w[r], xv);
            }
          }
        };
        add_stream.template operator()<0>();
        add_stream.template operator()<1>();
        if constexpr (kStreams == 4) {
          add_stream.template operator()<2>();
          add_stream.template operator()<3>();
        }
        F expanded[kTogether];
#pragma GCC unroll 2
        for (int r = 0; r < kTogether; ++r) {
          expanded[r] = f_permute(scale[r0 + r], lanes);
        }
#pragma GCC unroll 8
        for (int i = 0; i < kX; ++i) {
          F x_lanes = f_load(x + (kStreams * kX + i) * kVector);
#pragma GCC unroll 2
          for (int r = 0; r < kTogether; ++r) {
            acc[i][r0 + r] = f_fma(
                f_mul(i_to_f(dot[i][r]), x_lanes), expanded[r], acc[i][r0 + r]);
          }
        }
      }
      x += (kStreams + 1) * kX * kVector;
      left -= kVector;
    }
  }
  store_sums<kRows, kX>(acc, count, y, ldy);
}
