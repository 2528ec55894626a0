// The prefill entries of the table, by arithmetic. Included inside an anonymous
// namespace, after the packing and the products.

size_t tile_bytes(const Matrix& m, int rows) {
  if (m.prefill == Arithmetic::int8) {
    return byte_tile_bytes(m, rows);
  }
  int64_t bytes = tile_data_bytes(m, rows);
  if (m.prefill == Arithmetic::int16) {
    bytes += 2 * m.in / m.quant.group_size * rows * 4;
  }
  return size_t(ceil_to(bytes, 64));
}

void tile_pack(
    const Matrix& m, const float* x, int64_t ldx, int rows, std::byte* out) {
  switch (m.prefill) {
    case Arithmetic::int16:
      return integer_tile_pack(m, x, ldx, rows, out);
    case Arithmetic::int8:
      return byte_tile_pack(m, x, ldx, rows, out);
    default:
      return float_tile_pack(m, x, ldx, rows, out);
  }
}

size_t panel_bytes(const Matrix& m) {
  int64_t columns = min_of(m.in, panel_columns(m));
  if (m.prefill == Arithmetic::int8) {
    return size_t(byte_strip_bytes(m, columns) * (kPanelRows / kByteOutputs));
  }
  return size_t(strip_bytes(m, columns) * kPanelStrips);
}

void panel_pack(
    const Matrix& m,
    int64_t begin,
    int64_t end,
    int64_t k0,
    int64_t k1,
    std::byte* out) {
  if (m.prefill == Arithmetic::int8) {
    for (int64_t o = begin; o < end; o += kByteOutputs) {
      int count = int(min_of(kByteOutputs, end - o));
      byte_strip_pack_of(m, o, count, k0, k1, out);
      out += byte_strip_bytes(m, k1 - k0);
    }
    return;
  }
  int64_t bytes = strip_bytes(m, k1 - k0);
  for (int64_t o = begin; o < end; o += kLanes) {
    int64_t strip = (o - begin) / kStrip;
    int64_t half = (o - begin) % kStrip * 4;
    std::byte* base = out + strip * bytes + half;
    int count = int(min_of(kLanes, end - o));
    if (m.prefill == Arithmetic::int16) {
      integer_half_strip_of(
          m, o, count, k0, k1, base, base + strip_scale_bytes(m, k1 - k0));
    } else {
      float_half_strip_of(m, o, count, k0, k1, base);
    }
  }
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
  if (m.prefill == Arithmetic::int8) {
    return byte_panel_multiply(
        m, panel, panel_count, k0, k1, tile, rows, y, ldy);
  }
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
    if (m.prefill == Arithmetic::int16) {
      int64_t group = m.quant.group_size;
      const std::byte* x_scales = tile + tile_data_bytes(m, rows);
      const std::byte* x_sums = x_scales + m.in / group * rows * 4;
      int64_t skip = k0 / group * rows * 4;
      for_row_groups<kIntegerRows>(rows, [&]<int kX>(int first) {
        integer_strip<kX>(
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
      continue;
    }
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
  }
}

Arithmetic prefill_arithmetic(const Matrix& m, bool exact, bool int8) {
  if (exact) {
    return Arithmetic::f32;
  }
#if defined(__AVX512BF16__)
  return int8 && has_int16_codes(m) ? Arithmetic::int8 : Arithmetic::bf16;
#else
  // Sums of byte products are 1.6 times as fast as those of 16 bits, which are
  // nearly twice as fast as f32. With a scale for eight columns their error
  // (mean KL) is a fifth of that of 8-bit blocks of 32.
  (void)int8;
  if (m.quant.mode == QuantMode::affine && m.quant.bits <= 5) {
    return Arithmetic::int8;
  }
  return has_int16_codes(m) ? Arithmetic::int16 : Arithmetic::f32;
#endif
}
