// Products of packed activation rows and packed weights (panel_pack.h).
// Included inside an anonymous namespace, after panel_pack.h.

inline F broadcast(const std::byte* p) {
  return f_set(load<float>(p));
}

// The sums of a strip for kX rows; sum goes on from y when `add`.
template <int kX>
inline void store_strip(F (&acc)[kX][2], int count, float* y, int64_t ldy) {
#pragma GCC unroll 12
  for (int i = 0; i < kX; ++i) {
    float* out = y + i * ldy;
    if (count == kStrip) {
      f_store(out, acc[i][0]);
      f_store(out + kLanes, acc[i][1]);
    } else if (count >= kLanes) {
      f_store(out, acc[i][0]);
      if (count > kLanes) {
        f_store_part(out + kLanes, acc[i][1], count - kLanes);
      }
    } else {
      f_store_part(out, acc[i][0], count);
    }
  }
}

template <int kX>
inline void start_strip(
    F (&acc)[kX][2], bool add, int count, const float* y, int64_t ldy) {
#pragma GCC unroll 12
  for (int i = 0; i < kX; ++i) {
    acc[i][0] = acc[i][1] = f_zero();
    if (!add) {
      continue;
    }
    const float* in = y + i * ldy;
    acc[i][0] = count >= kLanes ? f_load(in) : f_load_part(in, count);
    if (count > kLanes) {
      acc[i][1] = count == kStrip ? f_load(in + kLanes)
                                  : f_load_part(in + kLanes, count - kLanes);
    }
  }
}

// kBf16: units are bf16 pairs, else f32. `stride`: rows of the tile.
template <bool kBf16, int kX>
void float_strip(
    const std::byte* units,
    int64_t count,
    const std::byte* tile,
    int64_t stride,
    bool add,
    int outputs,
    float* y,
    int64_t ldy) {
  F acc[kX][2];
  start_strip<kX>(acc, add, outputs, y, ldy);
  for (int64_t u = 0; u < count; ++u) {
    F w0 = f_load(units), w1 = f_load(units + kLanes * 4);
#pragma GCC unroll 12
    for (int i = 0; i < kX; ++i) {
      F x = broadcast(tile + i * 4);
      if constexpr (kBf16) {
#if defined(__AVX512BF16__)
        acc[i][0] = _mm512_dpbf16_ps(acc[i][0], (__m512bh)w0, (__m512bh)x);
        acc[i][1] = _mm512_dpbf16_ps(acc[i][1], (__m512bh)w1, (__m512bh)x);
#endif
      } else {
        acc[i][0] = f_fma(w0, x, acc[i][0]);
        acc[i][1] = f_fma(w1, x, acc[i][1]);
      }
    }
    units += kStrip * 4;
    tile += stride * 4;
  }
  store_strip<kX>(acc, outputs, y, ldy);
}

// dot = the 16-bit products of a group's units with kX rows, two vectors each.
template <int kX>
inline void dot_group(
    I (&dot)[kX][2],
    const std::byte* units,
    int64_t count,
    const std::byte* tile,
    int64_t stride) {
#if !defined(__AVX512F__)
  if constexpr (kX == 6) {
    dot_six_rows(dot, units, count, tile, stride * 4);
    return;
  }
#endif
#pragma GCC unroll 12
  for (int i = 0; i < kX; ++i) {
    dot[i][0] = dot[i][1] = i_zero();
  }
#pragma GCC unroll 2
  for (int64_t u = 0; u < count; ++u) {
    I w0 = i_load(units), w1 = i_load(units + kLanes * 4);
#pragma GCC unroll 12
    for (int i = 0; i < kX; ++i) {
      I x = i_set(load<int32_t>(tile + i * 4));
      dot[i][0] = i_dot16(dot[i][0], w0, x);
      dot[i][1] = i_dot16(dot[i][1], w1, x);
    }
    units += kStrip * 4;
    tile += stride * 4;
  }
}

template <int kX>
void integer_strip(
    const std::byte* scales,
    const std::byte* units,
    int64_t groups,
    int64_t group_units,
    const std::byte* tile,
    const std::byte* x_scales,
    const std::byte* x_sums,
    int64_t stride,
    bool add,
    int outputs,
    float* y,
    int64_t ldy) {
  F acc[kX][2];
  start_strip<kX>(acc, add, outputs, y, ldy);
  const std::byte* biases = scales + groups * kStrip * 4;
  for (int64_t g = 0; g < groups; ++g) {
    I dot[kX][2];
    dot_group<kX>(dot, units, group_units, tile, stride);
    units += group_units * kStrip * 4;
    tile += group_units * stride * 4;
    F s0 = f_load(scales), s1 = f_load(scales + kLanes * 4);
    F b0 = f_load(biases), b1 = f_load(biases + kLanes * 4);
#pragma GCC unroll 12
    for (int i = 0; i < kX; ++i) {
      F x = broadcast(x_scales + i * 4), sum = broadcast(x_sums + i * 4);
      acc[i][0] = f_fma(f_mul(i_to_f(dot[i][0]), s0), x, acc[i][0]);
      acc[i][1] = f_fma(f_mul(i_to_f(dot[i][1]), s1), x, acc[i][1]);
      acc[i][0] = f_fma(b0, sum, acc[i][0]);
      acc[i][1] = f_fma(b1, sum, acc[i][1]);
    }
    scales += kStrip * 4;
    biases += kStrip * 4;
    x_scales += stride * 4;
    x_sums += stride * 4;
  }
  store_strip<kX>(acc, outputs, y, ldy);
}
