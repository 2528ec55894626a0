// The choice of a decode kernel by format and number of rows. Included inside
// an anonymous namespace, after decode_kernels.h.

// Weight rows that three or four activation rows are multiplied with at once.
constexpr int kWideRows = kLanes == 16 ? 4 : 2;

inline bool has_int16_codes(const Matrix& m) {
  return m.quant.mode == QuantMode::affine &&
         (m.quant.bits == 4 || m.quant.bits == 8);
}

Arithmetic decode_arithmetic(const Matrix& m, bool exact) {
  if (exact || !has_int16_codes(m)) {
    return Arithmetic::f32;
  }
#if defined(__AVX512VNNI__)
  if (m.quant.bits == NibbleCodes::kBits) {
    return Arithmetic::int8;
  }
#endif
  return Arithmetic::int16;
}

size_t decode_row_bytes(const Matrix& m) {
#if defined(__AVX512VNNI__)
  if (m.decode != Arithmetic::f32) {
    return coded_row_bytes(m);
  }
#endif
  return m.decode == Arithmetic::int16 ? Int16Layout(m).row_bytes()
                                       : f32_row_bytes(m);
}

// One chunk of kX activation rows of `rows`; kRows weight rows at a time.
template <typename Block, int kRows, int kX>
void decode_chunk(
    const Matrix& m,
    int64_t begin,
    int64_t end,
    const std::byte* x,
    int rows,
    float* y,
    int64_t ldy) {
  for (int64_t o = begin; o < end; o += kRows) {
    int count = int(min_of(kRows, end - o));
    Block::template run<kRows, kX>(m, o, count, x, y + (o - begin), ldy);
    if (m.fetch != nullptr) {
      m.fetch->pass(count, kX, rows);
    }
  }
}

template <typename Block>
void decode_rows(
    const Matrix& m,
    int64_t begin,
    int64_t end,
    const std::byte* x,
    int rows,
    float* y,
    int64_t ldy) {
  int chunks = chunk_count(m, rows);
  // Weights that stay in the second cache while all chunks of rows use them.
  constexpr int64_t kBlockBytes = 128 * 1024;
  int64_t block = kBlockBytes / int64_t(m.weight_stride) / 4 * 4;
  block = chunks == 1 ? end - begin : block < 4 ? 4 : block;
  size_t row_bytes = decode_row_bytes(m);
  for (int64_t o = begin; o < end; o += block) {
    int64_t stop = min_of(o + block, end);
    for (int c = 0; c < chunks; ++c) {
      Chunk chunk = chunk_at(m, c, rows);
      const std::byte* xc = x + size_t(chunk.first) * row_bytes;
      float* yc = y + chunk.first * ldy + (o - begin);
      switch (chunk.rows) {
        case 1:
          decode_chunk<Block, 4, 1>(m, o, stop, xc, rows, yc, ldy);
          break;
        case 2:
          decode_chunk<Block, 4, 2>(m, o, stop, xc, rows, yc, ldy);
          break;
        case 3:
          decode_chunk<Block, kWideRows, 3>(m, o, stop, xc, rows, yc, ldy);
          break;
        case 4:
          decode_chunk<Block, kWideRows, 4>(m, o, stop, xc, rows, yc, ldy);
          break;
#if defined(__AVX512F__)
        case 5:
          decode_chunk<Block, 2, 5>(m, o, stop, xc, rows, yc, ldy);
          break;
        case 6:
          decode_chunk<Block, 2, 6>(m, o, stop, xc, rows, yc, ldy);
          break;
#endif
        default:
          break;
      }
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

void decode_pack(
    const Matrix& m, const float* x, int row, int rows, std::byte* out) {
#if defined(__AVX512VNNI__)
  if (m.decode != Arithmetic::f32) {
    coded_pack(m, x, row, rows, out);
    return;
  }
#endif
  Chunk chunk = chunk_of(m, row, rows);
  int slot = row - chunk.first;
  out += size_t(chunk.first) * decode_row_bytes(m);
  if (m.decode != Arithmetic::int16) {
    f32_pack_row(m, x, slot, chunk.rows, out);
  } else if (m.quant.bits == 4) {
    int16_pack_row_of<4>(m, x, slot, chunk.rows, out);
  } else {
    int16_pack_row_of<8>(m, x, slot, chunk.rows, out);
  }
}

void decode(
    const Matrix& m,
    int64_t begin,
    int64_t end,
    const std::byte* x,
    int rows,
    float* y,
    int64_t ldy) {
#if defined(__AVX512VNNI__)
  if (m.decode != Arithmetic::f32) {
    coded_decode(m, begin, end, x, rows, y, ldy);
    return;
  }
#endif
  auto run = [&]<typename Block>() {
    decode_rows<Block>(m, begin, end, x, rows, y, ldy);
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
