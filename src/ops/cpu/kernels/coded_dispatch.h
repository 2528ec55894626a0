// The choice between the kernels of coded_lanes.h and coded_strips.h. Included
// inside an anonymous namespace, only where there is VNNI.

// Calls f with the class of a matrix's codes.
template <typename Function>
inline auto with_codes(const Matrix& m, Function f) {
  return m.quant.bits == 4 ? f.template operator()<NibbleCodes>()
                           : f.template operator()<ByteCodes>();
}

inline size_t coded_row_bytes(const Matrix& m) {
  return with_codes(m, [&]<typename Codes>() {
    size_t lane = Codes::lane_row_bytes(m), strip = Codes::strip_row_bytes(m);
    return lane > strip ? lane : strip;
  });
}

void coded_pack(
    const Matrix& m, const float* x, int row, int rows, std::byte* out) {
  with_codes(m, [&]<typename Codes>() {
    if (rows > Codes::kLaneRows) {
      Codes::strip_pack_row(
          m, x, out + size_t(row) * Codes::strip_row_bytes(m));
    } else {
      Codes::lane_pack_row(m, x, out + size_t(row) * Codes::lane_row_bytes(m));
    }
  });
}

template <typename Codes, typename T>
void coded_decode_as(
    const Matrix& m,
    int64_t begin,
    int64_t end,
    const std::byte* x,
    int rows,
    float* y,
    int64_t ldy) {
  if (rows <= Codes::kLaneRows) {
    lane_decode<Codes, T>(m, begin, end, x, rows, y, ldy);
    return;
  }
  for (int first = 0; first < rows; first += kStripBatch) {
    strip_decode<Codes, T>(
        m,
        begin,
        end,
        x + size_t(first) * Codes::strip_row_bytes(m),
        int(min_of(kStripBatch, rows - first)),
        y + first * ldy,
        ldy);
  }
}

void coded_decode(
    const Matrix& m,
    int64_t begin,
    int64_t end,
    const std::byte* x,
    int rows,
    float* y,
    int64_t ldy) {
  with_codes(m, [&]<typename Codes>() {
    m.dtype == DType::f16
        ? coded_decode_as<Codes, F16>(m, begin, end, x, rows, y, ldy)
        : coded_decode_as<Codes, BF16>(m, begin, end, x, rows, y, ldy);
  });
}
