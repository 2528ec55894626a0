// Products of few activation rows: each vector of weights is read once for up
// to eight rows. Included inside an anonymous namespace.

// Rows of activations `stride` bytes apart, addressed from two bases with the
// scaled indexes that instructions have.
struct RowBases {
  const std::byte *first, *fifth;
  size_t stride, stride3;

  RowBases(const std::byte* x, size_t x_stride)
      : first(x),
        fifth(x + 4 * x_stride),
        stride(x_stride),
        stride3(3 * x_stride) {}
  const std::byte* at(int i, int64_t offset) const {
    const std::byte* base = i < 4 ? first : fifth;
    switch (i % 4) {
      case 0:
        return base + offset;
      case 1:
        return base + stride + offset;
      case 2:
        return base + 2 * stride + offset;
      default:
        return base + stride3 + offset;
    }
  }
};

// Makes the compiler load activations again for the next row of weights: kept
// ones would not leave registers for the sums.
template <int kX>
inline void forget_loads() {
  if constexpr (kX > 2) {
    asm volatile("" ::: "memory");
  }
}

// One load for both uses: folded into the products it would be done twice, and
// loads are what limits them.
inline void keep_in_register(I& v) {
  asm("" : MLXCEL_VECTOR_REGISTER(v));
}

// How far ahead of the loads weights are fetched: whole blocks of `rows` rows,
// at least the bytes that arrive during one access to memory.
inline int64_t fetch_distance(const Matrix& m, int rows) {
  constexpr int64_t kLeast = 4096;
  int64_t block = int64_t(m.weight_stride) * rows;
  return block >= kLeast ? block : (kLeast + block - 1) / block * block;
}

// ---- f32: weights converted in order, one fused multiply-add a vector.

inline size_t f32_row_bytes(const Matrix& m) {
  return size_t(ceil_to(m.in, 16)) * sizeof(float);
}

inline void f32_pack_row(const Matrix& m, const float* x, std::byte* out) {
  __builtin_memcpy(out, x, size_t(m.in) * sizeof(float));
  __builtin_memset(
      out + size_t(m.in) * sizeof(float),
      0,
      f32_row_bytes(m) - size_t(m.in) * sizeof(float));
}

template <typename Reader, int kRows, int kX>
void f32_block(
    const Matrix& m,
    int64_t row,
    int count,
    const std::byte* x,
    size_t x_stride,
    float* y,
    int64_t ldy) {
  RowBases xs(x, x_stride);
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
  int64_t ahead = fetch_distance(m, kRows);
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
          acc[i][r] = f_fma(w, f_load(xs.at(i, k * 4)), acc[i][r]);
        }
      }
    }
    if (k < end) {
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        F w = readers[r].part(k, end - k);
#pragma GCC unroll 8
        for (int i = 0; i < kX; ++i) {
          acc[i][r] = f_fma(w, f_load(xs.at(i, k * 4)), acc[i][r]);
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

struct Int16Layout {
  int64_t blocks, streams, sums;  // offsets in the order of the layout
  size_t codes_bytes, scales_bytes;

  explicit Int16Layout(const Matrix& m) {
    int64_t words = m.in * m.quant.bits / 32;
    blocks = (words + kLanes - 1) / kLanes;
    streams = 16 / m.quant.bits;
    sums = ceil_to(m.in / m.quant.group_size, 16);
    codes_bytes = size_t(blocks * streams * kLanes * 4);
    scales_bytes = size_t(blocks * kLanes * 4);
  }
  size_t bytes() const {
    return size_t(ceil_to(int64_t(codes_bytes + scales_bytes) + sums * 4, 64));
  }
};

template <int kBits>
void int16_pack_row_of(const Matrix& m, const float* x, std::byte* out) {
  constexpr int kStreams = 16 / kBits;
  constexpr int kBlock = kLanes * 32 / kBits;  // columns in a vector of codes
  constexpr int kLaneColumns = 32 / kBits;
  Int16Layout layout(m);
  auto* codes = reinterpret_cast<int16_t*>(out);
  auto* scales = reinterpret_cast<float*>(out + layout.codes_bytes);
  auto* sums =
      reinterpret_cast<float*>(out + layout.codes_bytes + layout.scales_bytes);
  for (int64_t g = 0; g < layout.sums; ++g) {
    sums[g] = 0;
  }
  int64_t per_sum = m.quant.group_size / kScaleGroup;
  for (int64_t b = 0; b < layout.blocks; ++b) {
    int64_t k0 = b * kBlock;
    alignas(64) int16_t natural[kBlock];
    for (int64_t j = 0; j < kBlock; j += kScaleGroup) {
      float* lane = scales + b * kLanes + j / kLaneColumns;
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
      sums[(k0 + j) / kScaleGroup / per_sum] += scale * total;
    }
    for (int s = 0; s < kStreams; ++s) {
      int16_t* stream = codes + (b * kStreams + s) * kLanes * 2;
      for (int w = 0; w < kLanes * 2; ++w) {
        stream[w] = natural[w * kStreams + s];
      }
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
    size_t x_stride,
    float* y,
    int64_t ldy) {
  constexpr int kStreams = 16 / kBits;
  constexpr int64_t kVector = kLanes * 4;
  // Rows of weights that use a loaded vector of activations, as far as there
  // are registers.
  constexpr int kTogether = kLanes == 16 || kX <= 2 ? 2 : 1;
  Int16Layout layout(m);
  int64_t groups = m.in / m.quant.group_size;
  int64_t width = m.quant.group_size * kBits / 32;  // lanes of a group
  int64_t row_bytes = int64_t(m.weight_stride);
  const int32_t* index = group_index(width);
  const std::byte *codes[kRows], *scales[kRows], *biases[kRows];
  for (int r = 0; r < kRows; ++r) {
    size_t at = size_t(row + (r < count ? r : count - 1));
    codes[r] = m.weight + at * m.weight_stride;
    scales[r] = m.scales + at * m.scale_stride;
    biases[r] = m.biases + at * m.scale_stride;
  }
  const std::byte* lane_scales = x + layout.codes_bytes;
  const std::byte* sums = lane_scales + layout.scales_bytes;
  int64_t ahead = fetch_distance(m, kRows);
  int64_t scales_ahead = ahead / row_bytes * int64_t(m.scale_stride);

  F acc[kX][kRows];
#pragma GCC unroll 8
  for (int i = 0; i < kX; ++i) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      acc[i][r] = f_zero();
    }
  }
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
        acc[i][r] =
            f_fma(bias, f_load(sums + size_t(i) * x_stride + g * 4), acc[i][r]);
      }
    }
    int64_t block = g * width / kLanes;
    int64_t block_end = min_of(block + width, layout.blocks);
    for (int64_t first = block; block < block_end; ++block) {
      I lanes = i_load(index + (block - first) * kLanes);
      int64_t at = block * kVector;
      RowBases x_block(x + block * kStreams * kVector, x_stride);
      RowBases x_scale(lane_scales + block * kVector, x_stride);
#pragma GCC unroll 2
      for (int r0 = 0; r0 < kRows; r0 += kTogether) {
        forget_loads<kX>();
        I v[kTogether];
#pragma GCC unroll 2
        for (int r = 0; r < kTogether; ++r) {
          const std::byte* row_codes = codes[r0 + r] + at;
          v[r] = at + kVector <= row_bytes
                     ? i_load(row_codes)
                     : i_load_part(row_codes, row_bytes - at);
          _mm_prefetch(
              reinterpret_cast<const char*>(row_codes) + ahead, _MM_HINT_T0);
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
            I xv = i_load(x_block.at(i, kStream * kVector));
            if constexpr (kTogether == 2) {
              keep_in_register(xv);
            }
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
          F x_lanes = f_load(x_scale.at(i, 0));
#pragma GCC unroll 2
          for (int r = 0; r < kTogether; ++r) {
            acc[i][r0 + r] = f_fma(
                f_mul(i_to_f(dot[i][r]), x_lanes), expanded[r], acc[i][r0 + r]);
          }
        }
      }
    }
  }
  store_sums<kRows, kX>(acc, count, y, ldy);
}

// ---- Dispatch.

// At most kMaxX activation rows.
template <typename Block>
void decode_chunk(
    const Matrix& m,
    int64_t begin,
    int64_t end,
    const std::byte* x,
    size_t x_stride,
    int rows,
    float* y,
    int64_t ldy) {
  for (int64_t o = begin; o < end; o += 4) {
    int count = int(min_of(4, end - o));
    float* out = y + (o - begin);
    auto wide = [&]<int kX>() {  // two weight rows at a time
      for (int h = 0; h < count; h += 2) {
        Block::template run<2, kX>(
            m, o + h, int(min_of(2, count - h)), x, x_stride, out + h, ldy);
      }
    };
    switch (rows) {
      case 1:
        Block::template run<4, 1>(m, o, count, x, x_stride, out, ldy);
        break;
      case 2:
        Block::template run<4, 2>(m, o, count, x, x_stride, out, ldy);
        break;
      case 3:
        wide.template operator()<3>();
        break;
      case 4:
        wide.template operator()<4>();
        break;
#if defined(__AVX512F__)
      case 5:
        wide.template operator()<5>();
        break;
      case 6:
        wide.template operator()<6>();
        break;
#endif
      default:
        break;
    }
  }
}

// Block<rows, x>::run for `count` weight rows and kX activation rows.
template <typename Block>
void decode_rows(
    const Matrix& m,
    int64_t begin,
    int64_t end,
    const std::byte* x,
    size_t x_stride,
    int rows,
    float* y,
    int64_t ldy) {
  int chunks = (rows + kMaxX - 1) / kMaxX;
  // Weights that stay in the second cache while all chunks of rows use them.
  constexpr int64_t kBlockBytes = 128 * 1024;
  int64_t block = kBlockBytes / int64_t(m.weight_stride) / 4 * 4;
  block = chunks == 1 ? end - begin : block < 4 ? 4 : block;
  for (int64_t o0 = begin; o0 < end; o0 += block) {
    for (int c = 0; c < chunks; ++c) {
      int r0 = rows * c / chunks, n = rows * (c + 1) / chunks - r0;
      decode_chunk<Block>(
          m,
          o0,
          min_of(o0 + block, end),
          x + size_t(r0) * x_stride,
          x_stride,
          n,
          y + r0 * ldy + (o0 - begin),
          ldy);
    }
  }
}
template <typename Reader>
struct F32Block {
  template <int kRows, int kX, typename... Args>
  static void run(Args... args) {
    f32_block<Reader, kRows, kX>(args...);
  }
};

template <int kBits, typename T>
struct Int16Block {
  template <int kRows, int kX, typename... Args>
  static void run(Args... args) {
    int16_block<kBits, T, kRows, kX>(args...);
  }
};

inline bool has_int16_codes(const Matrix& m) {
  return m.quant.mode == QuantMode::affine &&
         (m.quant.bits == 4 || m.quant.bits == 8);
}

Arithmetic decode_arithmetic(const Matrix& m, bool exact) {
  return !exact && has_int16_codes(m) ? Arithmetic::int16 : Arithmetic::f32;
}

size_t decode_row_bytes(const Matrix& m) {
  return m.decode == Arithmetic::int16 ? Int16Layout(m).bytes()
                                       : f32_row_bytes(m);
}

void decode_pack(const Matrix& m, const float* x, std::byte* out) {
  if (m.decode != Arithmetic::int16) {
    f32_pack_row(m, x, out);
  } else if (m.quant.bits == 4) {
    int16_pack_row_of<4>(m, x, out);
  } else {
    int16_pack_row_of<8>(m, x, out);
  }
}

void decode(
    const Matrix& m,
    int64_t begin,
    int64_t end,
    const std::byte* x,
    size_t x_stride,
    int rows,
    float* y,
    int64_t ldy) {
  auto run = [&]<typename Block>() {
    decode_rows<Block>(m, begin, end, x, x_stride, rows, y, ldy);
  };
  if (m.decode == Arithmetic::int16) {
    bool half = m.dtype == DType::f16;
    if (m.quant.bits == 4) {
      half ? run.template operator()<Int16Block<4, F16>>()
           : run.template operator()<Int16Block<4, BF16>>();
    } else {
      half ? run.template operator()<Int16Block<8, F16>>()
           : run.template operator()<Int16Block<8, BF16>>();
    }
    return;
  }
  with_reader(m, [&]<typename Reader>() {
    run.template operator()<F32Block<Reader>>();
  });
}
