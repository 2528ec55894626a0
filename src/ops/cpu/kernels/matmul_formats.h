// How vectors of weights are read, for the kernel templates. Included inside an
// anonymous namespace after one of the simd_*.h.

struct F32 {
  static constexpr int64_t kBytes = 4;
  static F get(const std::byte* p) {
    return f_load(p);
  }
  static F part(const std::byte* p, int64_t n) {
    return f_load_part(p, n);
  }
  static float one(const std::byte* p) {
    return load<float>(p);
  }
};
struct F16 {
  static constexpr int64_t kBytes = 2;
  static F get(const std::byte* p) {
    return f16_load(p);
  }
  static F part(const std::byte* p, int64_t n) {
    return f16_load_part(p, n);
  }
  static float one(const std::byte* p) {
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(load<uint16_t>(p))));
  }
};
struct BF16 {
  static constexpr int64_t kBytes = 2;
  static F get(const std::byte* p) {
    return bf16_load(p);
  }
  static F part(const std::byte* p, int64_t n) {
    return bf16_load_part(p, n);
  }
  static float one(const std::byte* p) {
    return from_bits(uint32_t(load<uint16_t>(p)) << 16);
  }
};

// Calls f with the type of the elements.
template <typename Function>
void with_plain(DType dtype, Function f) {
  switch (dtype) {
    case DType::f16:
      return f.template operator()<F16>();
    case DType::bf16:
      return f.template operator()<BF16>();
    default:
      return f.template operator()<F32>();
  }
}

// A reader turns the columns of one row, in order, into vectors. at(k): columns
// [k, k + kLanes); part(k, n): the first n of them, zeros after. Columns are
// asked for in multiples of kLanes from a group's start.
template <typename T>
struct PlainReader {
  static constexpr bool kGroups = false;
  explicit PlainReader(const Matrix& m, int64_t row)
      : data(m.weight + size_t(row) * m.weight_stride) {}
  void group(int64_t) {}
  F at(int64_t k) const {
    return T::get(data + k * T::kBytes);
  }
  F part(int64_t k, int64_t n) const {
    return T::part(data + k * T::kBytes, n);
  }
  const void* address(int64_t k) const {
    return data + k * T::kBytes;
  }
  const std::byte* data;
};

// w = scale * code + bias; group(g) comes before the columns of group g.
template <int kBits, typename T>
struct AffineReader {
  static constexpr bool kGroups = true;
  explicit AffineReader(const Matrix& m, int64_t row)
      : data(m.weight + size_t(row) * m.weight_stride),
        scales(m.scales + size_t(row) * m.scale_stride),
        biases(m.biases + size_t(row) * m.scale_stride),
        bits(m.quant.bits) {}
  void group(int64_t g) {
    scale = f_set(T::one(scales + g * T::kBytes));
    bias = f_set(T::one(biases + g * T::kBytes));
  }
  F at(int64_t k) const {
    I codes;
    if constexpr (kBits == 4) {
      codes = nibbles_to_i(data + k / 2);
    } else if constexpr (kBits == 8) {
      codes = u8_to_i(data + k);
    } else {
      int32_t buffer[kLanes];
      for (int l = 0; l < kLanes; ++l) {
        buffer[l] = int32_t(unpack_code(data, bits, k + l));
      }
      codes = i_load(buffer);
    }
    return f_fma(scale, i_to_f(codes), bias);
  }
  F part(int64_t k, int64_t) const {  // rows end with a whole group
    return at(k);
  }
  const void* address(int64_t k) const {
    return data + k * bits / 8;
  }
  const std::byte *data, *scales, *biases;
  int bits;
  F scale, bias;
};

// Calls f with the reader type of a matrix.
template <typename T, typename Function>
void with_affine_reader(const Matrix& m, Function f) {
  switch (m.quant.bits) {
    case 4:
      return f.template operator()<AffineReader<4, T>>();
    case 8:
      return f.template operator()<AffineReader<8, T>>();
    default:
      return f.template operator()<AffineReader<0, T>>();
  }
}

template <typename Function>
void with_reader(const Matrix& m, Function f) {
  if (m.quant.packed()) {
    switch (m.dtype) {
      case DType::f16:
        return with_affine_reader<F16>(m, f);
      case DType::bf16:
        return with_affine_reader<BF16>(m, f);
      default:
        return with_affine_reader<F32>(m, f);
    }
  }
  switch (m.dtype) {
    case DType::f16:
      return f.template operator()<PlainReader<F16>>();
    case DType::bf16:
      return f.template operator()<PlainReader<BF16>>();
    default:
      return f.template operator()<PlainReader<F32>>();
  }
}

constexpr int64_t ceil_to(int64_t value, int64_t to) {
  return (value + to - 1) / to * to;
}

inline int64_t min_of(int64_t a, int64_t b) {
  return a < b ? a : b;
}

// Calls f<n>(first row) over groups of at most kMost rows, evenly cut.
template <int kMost, typename Function>
inline void for_row_groups(int rows, Function f) {
  int groups = (rows + kMost - 1) / kMost;
  for (int g = 0; g < groups; ++g) {
    int first = rows * g / groups;
    int n = rows * (g + 1) / groups - first;
    auto pick = [&]<int kX>(auto&& self) {
      if constexpr (kX <= kMost) {
        if (n == kX) {
          f.template operator()<kX>(first);
        } else {
          self.template operator()<kX + 1>(self);
        }
      }
    };
    pick.template operator()<1>(pick);
  }
}

// Lane sums of four vectors, each by the same tree: halves are folded down to
// four lanes, then lanes (0 + 2) + (1 + 3).
inline __m128 sum_lanes(F a, F b, F c, F d) {
  __m128 v0 = fold_to_four(a), v1 = fold_to_four(b);
  __m128 v2 = fold_to_four(c), v3 = fold_to_four(d);
  __m128 t0 = _mm_unpacklo_ps(v0, v1), t1 = _mm_unpackhi_ps(v0, v1);
  __m128 t2 = _mm_unpacklo_ps(v2, v3), t3 = _mm_unpackhi_ps(v2, v3);
  __m128 even = _mm_add_ps(t0, t1), odd = _mm_add_ps(t2, t3);
  return _mm_add_ps(_mm_movelh_ps(even, odd), _mm_movehl_ps(odd, even));
}

inline void store_four(__m128 sums, int count, float* out) {
  if (count == 4) {
    _mm_storeu_ps(out, sums);
    return;
  }
  float buffer[4];
  _mm_storeu_ps(buffer, sums);
  for (int r = 0; r < count; ++r) {
    out[r] = buffer[r];
  }
}

// y[i * ldy + r] = the sum of acc[i][r], for r < count.
template <int kRows, int kX>
inline void store_sums(F (&acc)[kX][kRows], int count, float* y, int64_t ldy) {
  static_assert(kRows == 2 || kRows == 4);
  if constexpr (kRows == 4) {
#pragma GCC unroll 8
    for (int i = 0; i < kX; ++i) {
      F(&a)[kRows] = acc[i];
      store_four(sum_lanes(a[0], a[1], a[2], a[3]), count, y + i * ldy);
    }
  } else {
#pragma GCC unroll 4
    for (int i = 0; i < kX; i += 2) {
      F(&a)[kRows] = acc[i];
      F(&b)[kRows] = acc[i + 1 < kX ? i + 1 : i];
      __m128 sums = sum_lanes(a[0], a[1], b[0], b[1]);
      float buffer[4];
      _mm_storeu_ps(buffer, sums);
      for (int r = 0; r < count; ++r) {
        y[i * ldy + r] = buffer[r];
        if (i + 1 < kX) {
          y[(i + 1) * ldy + r] = buffer[2 + r];
        }
      }
    }
  }
}
