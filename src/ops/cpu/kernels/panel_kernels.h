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

template <bool kBytes>
inline I dot_units(I acc, I weights, I x) {
  if constexpr (kBytes) {
#if defined(__AVX512VNNI__)
    return _mm512_dpbusd_epi32(acc, weights, x);
#endif
  }
  return i_dot16(acc, weights, x);
}

template <bool kBytes, int kX>
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
#pragma GCC unroll 12
    for (int i = 0; i < kX; ++i) {
      dot[i][0] = dot[i][1] = i_zero();
    }
#pragma GCC unroll 2
    for (int64_t u = 0; u < group_units; ++u) {
      I w0 = i_load(units), w1 = i_load(units + kLanes * 4);
#pragma GCC unroll 12
      for (int i = 0; i < kX; ++i) {
        I x = i_set(load<int32_t>(tile + i * 4));
        dot[i][0] = dot_units<kBytes>(dot[i][0], w0, x);
        dot[i][1] = dot_units<kBytes>(dot[i][1], w1, x);
      }
      units += kStrip * 4;
      tile += stride * 4;
    }
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

void panel_multiply(
    const Matrix& m,
    const std::byte* panel,
    int panel_count,
    int64_t k0,
    int64_t k1,
    const std::byte* tile,
    int rows,
    float* y,
    int64_t ldy) {
  int64_t bytes = strip_bytes(m, k1 - k0);
  int64_t scale_bytes = strip_scale_bytes(m, k1 - k0);
  int64_t unit = unit_columns(m.prefill);
  int64_t units = unit_count(m, k1 - k0);
  const std::byte* tile_units = tile + k0 / unit * rows * 4;
  for (int o = 0; o < panel_count; o += kStrip) {
    const std::byte* strip = panel + o / kStrip * bytes;
    const std::byte* data = strip + scale_bytes;
    int outputs = int(min_of(kStrip, panel_count - o));
    float* out = y + o;
    if (!is_integer(m.prefill)) {
      auto run = [&]<bool kBf16>() {
        for_row_groups<kTileRows>(rows, [&]<int kX>(int first) {
          float_strip<kBf16, kX>(
              data,
              units,
              tile_units + first * 4,
              rows,
              k0 > 0,
              outputs,
              out + first * ldy,
              ldy);
        });
      };
#if defined(__AVX512BF16__)
      if (m.prefill == Arithmetic::bf16) {
        run.template operator()<true>();
        continue;
      }
#endif
      run.template operator()<false>();
      continue;
    }
    int64_t group = activation_group(m);
    const std::byte* x_scales = tile + tile_data_bytes(m, rows);
    const std::byte* x_sums = x_scales + m.in / group * rows * 4;
    int64_t skip = k0 / group * rows * 4;
    auto run = [&]<bool kBytes>() {
      for_row_groups<kIntegerRows>(rows, [&]<int kX>(int first) {
        integer_strip<kBytes, kX>(
            strip,
            data,
            (k1 - k0) / group,
            group / unit,
            tile_units + first * 4,
            x_scales + skip + first * 4,
            x_sums + skip + first * 4,
            rows,
            k0 > 0,
            outputs,
            out + first * ldy,
            ldy);
      });
    };
#if defined(__AVX512VNNI__)
    if (m.prefill == Arithmetic::int8) {
      run.template operator()<true>();
      continue;
    }
#endif
    run.template operator()<false>();
  }
}

Arithmetic prefill_arithmetic(const Matrix& m, bool exact, bool int8) {
  if (exact) {
    return Arithmetic::f32;
  }
#if defined(__AVX512BF16__)
  return int8 && has_int16_codes(m) ? Arithmetic::int8 : Arithmetic::bf16;
#else
  // 16-bit products are as fast as 8-bit ones here, and exact sums of 16 bits
  // are nearly twice as fast as f32.
  (void)int8;
  return has_int16_codes(m) ? Arithmetic::int16 : Arithmetic::f32;
#endif
}
