// Activations, adapter terms and single rows. Included inside an anonymous
// namespace, after a simd_*.h.

#include "ops/cpu/kernels/math_simd.h"

// Abramowitz and Stegun 7.1.26, |error| <= 1.5e-7.
inline F f_erf(F x) {
  F z = f_abs(x);
  F t = f_div(f_set(1), f_fma(f_set(0.3275911f), z, f_set(1)));
  F p = f_set(1.061405429f);
  p = f_fma(p, t, f_set(-1.453152027f));
  p = f_fma(p, t, f_set(1.421413741f));
  p = f_fma(p, t, f_set(-0.284496736f));
  p = f_fma(p, t, f_set(0.254829592f));
  F tail = f_mul(f_mul(p, t), f_exp(f_sub(f_zero(), f_mul(z, z))));
  F magnitude = f_sub(f_set(1), tail);
  // The sign of x.
  I sign = i_and(f_as_i(x), i_set(int(0x80000000u)));
  return i_as_f(i_or(f_as_i(magnitude), sign));
}

template <Activation kActivation>
inline F activated(F x) {
  switch (kActivation) {
    case Activation::none:
      return x;
    case Activation::silu:
      return f_mul(x, f_sigmoid(x));
    case Activation::gelu: {
      F half = f_mul(f_set(0.5f), x);
      return f_fma(half, f_erf(f_mul(x, f_set(0.70710678f))), half);
    }
    case Activation::gelu_tanh: {
      // 1 + tanh(u) = 2 sigmoid(2 u)
      F cubic = f_mul(f_mul(x, x), f_mul(x, f_set(0.044715f)));
      F u = f_mul(f_set(2 * 0.79788456f), f_add(x, cubic));
      return f_mul(x, f_sigmoid(u));
    }
    case Activation::relu:
      return f_max(x, f_zero());
    case Activation::relu_squared: {
      F positive = f_max(x, f_zero());
      return f_mul(positive, positive);
    }
    case Activation::tanh:  // 2 sigmoid(2 x) - 1
      return f_sub(f_mul(f_set(2), f_sigmoid(f_add(x, x))), f_set(1));
    case Activation::xielu:
      break;  // NormKernels::xielu
    case Activation::sigmoid:
      return f_sigmoid(x);
  }
  return x;
}

template <Activation kActivation>
void activate_with(
    const float* gate, const float* up, float* out, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    F v = activated<kActivation>(f_load(gate + i));
    f_store(out + i, up != nullptr ? f_mul(v, f_load(up + i)) : v);
  }
  if (i < count) {
    int64_t n = count - i;
    F v = activated<kActivation>(f_load_part(gate + i, n));
    f_store_part(
        out + i, up != nullptr ? f_mul(v, f_load_part(up + i, n)) : v, n);
  }
}

void activate(
    Activation activation,
    const float* gate,
    const float* up,
    float* out,
    int64_t count) {
  switch (activation) {
    case Activation::none:
      return activate_with<Activation::none>(gate, up, out, count);
    case Activation::silu:
      return activate_with<Activation::silu>(gate, up, out, count);
    case Activation::gelu:
      return activate_with<Activation::gelu>(gate, up, out, count);
    case Activation::gelu_tanh:
      return activate_with<Activation::gelu_tanh>(gate, up, out, count);
    case Activation::relu:
      return activate_with<Activation::relu>(gate, up, out, count);
    case Activation::relu_squared:
      return activate_with<Activation::relu_squared>(gate, up, out, count);
    case Activation::tanh:
      return activate_with<Activation::tanh>(gate, up, out, count);
    case Activation::xielu:
      break;  // NormKernels::xielu
    case Activation::sigmoid:
      return activate_with<Activation::sigmoid>(gate, up, out, count);
  }
}

void term_dot(
    DType dtype,
    const std::byte* matrix,
    size_t stride,
    int64_t begin,
    int64_t end,
    const float* x,
    int64_t in,
    float* y) {
  with_plain(dtype, [&]<typename T>() {
    for (int64_t j = begin; j < end; j += 4) {
      int count = int(min_of(4, end - j));
      const std::byte* row[4];
      for (int r = 0; r < 4; ++r) {
        row[r] = matrix + size_t(j + (r < count ? r : 0)) * stride;
      }
      F acc[4] = {f_zero(), f_zero(), f_zero(), f_zero()};
      int64_t k = 0;
      for (; k + kLanes <= in; k += kLanes) {
        F v = f_load(x + k);
        for (int r = 0; r < 4; ++r) {
          acc[r] = f_fma(T::get(row[r] + k * T::kBytes), v, acc[r]);
        }
      }
      if (k < in) {
        F v = f_load_part(x + k, in - k);
        for (int r = 0; r < 4; ++r) {
          acc[r] = f_fma(T::part(row[r] + k * T::kBytes, in - k), v, acc[r]);
        }
      }
      store_four(
          sum_lanes(acc[0], acc[1], acc[2], acc[3]), count, y + (j - begin));
    }
  });
}

// term_axpy over all of the `n` columns of a matrix narrower than a vector:
// vectors of kLanes / n rows at a time.
template <typename T>
void narrow_axpy(
    const std::byte* matrix,
    int n,
    int64_t count,
    const float* t,
    float factor,
    float* y) {
  const int32_t* index = group_index(n);
  F acc[2] = {f_zero(), f_zero()};
  for (int64_t i = 0; i < count; i += kLanes) {
    int64_t left = (count - i) * n;  // elements
    F x = count - i >= kLanes ? f_load(t + i) : f_load_part(t + i, count - i);
    for (int v = 0; v < n && left > 0; ++v, left -= kLanes) {
      F m = left >= kLanes ? T::get(matrix) : T::part(matrix, left);
      acc[v % 2] =
          f_fma(m, f_permute(x, i_load(index + v * kLanes)), acc[v % 2]);
      matrix += kLanes * T::kBytes;
    }
  }
  float lanes[kLanes];
  f_store(lanes, f_add(acc[0], acc[1]));
  for (int j = 0; j < n; ++j) {
    float sum = 0;
    for (int l = j; l < kLanes; l += n) {
      sum += lanes[l];
    }
    y[j] += factor * sum;
  }
}

// Columns of some vectors, or `n` of one: sum c is of rows i = c mod kSums,
// then (0 + 1) + (2 + 3). Whole lines of memory are used up at a time: the rows
// of a matrix with a large power of two between them share a few sets of the
// cache.
template <typename T, int kVectors, int kSums>
inline void axpy_columns(
    const std::byte* matrix,
    size_t stride,
    int64_t count,
    int64_t n,
    const float* t,
    float factor,
    float* y) {
  static_assert(kSums == 1 || kSums == 4);
  auto get = [&](int64_t i, int v) {
    const std::byte* at = matrix + size_t(i) * stride + v * kLanes * T::kBytes;
    return kVectors > 1 || n == kLanes ? T::get(at) : T::part(at, n);
  };
  F acc[kVectors][kSums];
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 4
    for (int c = 0; c < kSums; ++c) {
      acc[v][c] = f_zero();
    }
  }
  int64_t i = 0;
  for (; i + kSums <= count; i += kSums) {
#pragma GCC unroll 4
    for (int c = 0; c < kSums; ++c) {
      F factors = f_set(t[i + c]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        acc[v][c] = f_fma(get(i + c, v), factors, acc[v][c]);
      }
    }
  }
  for (; i < count; ++i) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      acc[v][0] = f_fma(get(i, v), f_set(t[i]), acc[v][0]);
    }
  }
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    F sum = acc[v][0];
    if constexpr (kSums == 4) {
      sum = f_add(f_add(sum, acc[v][1]), f_add(acc[v][2], acc[v][3]));
    }
    float* out = y + v * kLanes;
    if (kVectors > 1 || n == kLanes) {
      f_store(out, f_fma(sum, f_set(factor), f_load(out)));
    } else {
      f_store_part(out, f_fma(sum, f_set(factor), f_load_part(out, n)), n);
    }
  }
}

// As many vectors at a time as there are, then single ones.
template <typename T, int kVectors, int kSums>
inline void axpy_with(
    const std::byte* matrix,
    size_t stride,
    int64_t count,
    int64_t columns,
    const float* t,
    float factor,
    float* y) {
  int64_t j = 0;
  for (; j + kVectors * kLanes <= columns; j += kVectors * kLanes) {
    axpy_columns<T, kVectors, kSums>(
        matrix + j * T::kBytes, stride, count, kLanes, t, factor, y + j);
  }
  for (; j < columns; j += kLanes) {
    axpy_columns<T, 1, kSums>(
        matrix + j * T::kBytes,
        stride,
        count,
        min_of(kLanes, columns - j),
        t,
        factor,
        y + j);
  }
}

void term_axpy(
    DType dtype,
    const std::byte* matrix,
    size_t stride,
    int64_t count,
    int64_t begin,
    int64_t end,
    const float* t,
    float factor,
    float* y) {
  with_plain(dtype, [&]<typename T>() {
    int64_t width = end - begin;
    bool whole = begin == 0 && int64_t(stride) == width * T::kBytes;
    if (whole && (width == 4 || width == 8)) {
      narrow_axpy<T>(matrix, int(width), count, t, factor, y);
      return;
    }
    // The order of a sum is the matrix's, whatever range of it is asked for.
    constexpr int kWide = 8;
    const std::byte* at = matrix + begin * T::kBytes;
    if (int64_t(stride) < kWide * kLanes * T::kBytes) {
      axpy_with<T, kLanes == 16 ? 4 : 2, 4>(
          at, stride, count, width, t, factor, y);
    } else {
      axpy_with<T, kWide, 1>(at, stride, count, width, t, factor, y);
    }
  });
}

void read_row(const Matrix& m, int64_t row, float scale, float* out) {
  with_reader(m, [&]<typename Reader>() {
    Reader reader(m, row);
    int64_t group = Reader::kGroups ? m.quant.group_size : m.in;
    for (int64_t g = 0, k = 0; k < m.in; ++g) {
      reader.group(g);
      int64_t end = k + group;
      for (; k + kLanes <= end; k += kLanes) {
        f_store(out + k, f_mul(reader.at(k), f_set(scale)));
      }
      if (k < end) {
        f_store_part(
            out + k, f_mul(reader.part(k, end - k), f_set(scale)), end - k);
        k = end;
      }
    }
  });
}
