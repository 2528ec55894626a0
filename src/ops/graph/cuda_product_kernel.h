// The text of the CUDA kernel for products of a few rows with a packed matrix,
// compiled by MLX on the device it runs on.
//
// A block answers 16 * TILES rows of the matrix for 8 * COLUMNS rows of x. Its
// warps split the matrix's columns: a warp takes 128 at a time, a lane 32
// values in a row of two matrix rows a tile, so that the loads are as wide as
// the format lets them be. Tensor cores multiply (m16n8k16: the matrix's rows
// as rows, x's as columns), so eight rows of x cost what one does. The order of
// a tile's k is free: whatever four values a lane unpacks next are its share.
// The partial sums of the warps meet in shared memory in a fixed order.
#pragma once

namespace mlxcel::graph {

// Values of x that a block of the kernel can hold in shared memory.
inline constexpr int kHeldValues = 16384;

// Functions of the kernel, templates over the type of activations.
inline constexpr const char* kProductHeader = R"cuda(
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace mlxcel {

constexpr int kAffine = 0, kMxfp4 = 1, kMxfp8 = 2, kNvfp4 = 3;  // FORMAT

template <typename T>
struct Half;

template <>
struct Half<__nv_bfloat16> {
  using Two = __nv_bfloat162;
  static constexpr unsigned kMagic = 0x43004300;  // 128, a unit in the last bit
  static constexpr float kMagicValue = 128;
  static __device__ __forceinline__ float wide(__nv_bfloat16 x) {
    return __bfloat162float(x);
  }
  static __device__ __forceinline__ __nv_bfloat16 narrow(float x) {
    return __float2bfloat16_rn(x);
  }
  static __device__ __forceinline__ Two both(__nv_bfloat16 x) {
    return __bfloat162bfloat162(x);
  }
  static __device__ __forceinline__ Two pair(float x, float y) {
    return __floats2bfloat162_rn(x, y);
  }
  static __device__ __forceinline__ void multiply(
      float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

template <>
struct Half<__half> {
  using Two = __half2;
  static constexpr unsigned kMagic = 0x64006400;  // 1024
  static constexpr float kMagicValue = 1024;
  static __device__ __forceinline__ float wide(__half x) {
    return __half2float(x);
  }
  static __device__ __forceinline__ __half narrow(float x) {
    return __float2half_rn(x);
  }
  static __device__ __forceinline__ Two both(__half x) {
    return __half2half2(x);
  }
  static __device__ __forceinline__ Two pair(float x, float y) {
    return __floats2half2_rn(x, y);
  }
  static __device__ __forceinline__ void multiply(
      float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

template <typename Two>
__device__ __forceinline__ unsigned bits_of(Two x) {
  return *reinterpret_cast<unsigned*>(&x);
}

// BITS words, the 32 values of a lane.
template <int BITS>
__device__ __forceinline__ void load_words(
    const unsigned* from, unsigned (&to)[BITS]) {
  if constexpr (BITS % 4 == 0) {
#pragma unroll
    for (int i = 0; i < BITS; i += 4) {
      uint4 v = __ldg(reinterpret_cast<const uint4*>(from + i));
      to[i] = v.x;
      to[i + 1] = v.y;
      to[i + 2] = v.z;
      to[i + 3] = v.w;
    }
  } else if constexpr (BITS % 2 == 0) {
#pragma unroll
    for (int i = 0; i < BITS; i += 2) {
      uint2 v = __ldg(reinterpret_cast<const uint2*>(from + i));
      to[i] = v.x;
      to[i + 1] = v.y;
    }
  } else {
#pragma unroll
    for (int i = 0; i < BITS; ++i) {
      to[i] = __ldg(from + i);
    }
  }
}

// 1 + code / 2^BITS of value `at` of a lane.
template <int BITS>
__device__ __forceinline__ float fraction(
    const unsigned (&words)[BITS], int at) {
  constexpr int kPlace = 23 - BITS;
  int bit = at * BITS, word = bit / 32, shift = bit % 32;
  unsigned v = words[word];
  if (shift + BITS > 32) {
    v = __funnelshift_r(v, words[word + 1 < BITS ? word + 1 : word], shift);
    shift = 0;
  }
  v = shift > kPlace ? v >> (shift - kPlace) : v << (kPlace - shift);
  return __uint_as_float(
      (v & (((1u << BITS) - 1) << kPlace)) | 0x3f800000u);
}

// Sixteen-bit values x[0..32) as pairs for the tensor cores: neighbours, or
// with SPREAD the pairs (0, 4), (1, 5), (2, 6), (3, 7) of each eight.
template <bool SPREAD, typename T>
__device__ __forceinline__ void load_x(
    const T* x, bool wide_loads, unsigned (&b)[16]) {
  if (wide_loads) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint4 v = reinterpret_cast<const uint4*>(x)[i];
      b[4 * i] = v.x;
      b[4 * i + 1] = v.y;
      b[4 * i + 2] = v.z;
      b[4 * i + 3] = v.w;
    }
  } else {
    const unsigned short* from = reinterpret_cast<const unsigned short*>(x);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      b[i] = from[2 * i] | unsigned(from[2 * i + 1]) << 16;
    }
  }
  if constexpr (SPREAD) {
#pragma unroll
    for (int i = 0; i < 16; i += 4) {
      unsigned p = b[i], q = b[i + 1], r = b[i + 2], s = b[i + 3];
      b[i] = __byte_perm(p, r, 0x5410);
      b[i + 1] = __byte_perm(p, r, 0x7632);
      b[i + 2] = __byte_perm(q, s, 0x5410);
      b[i + 3] = __byte_perm(q, s, 0x7632);
    }
  }
}

// The value of an OCP e4m3 number; no weight is its NaN.
__device__ __forceinline__ float e4m3(unsigned code) {
  unsigned short bits = (code & 0x80u) << 8 | (code & 0x7fu) << 7;
  return __half2float(__ushort_as_half(bits)) * 256.0f;
}

// What a lane's 32 values share: value = e2m1 or e4m3 number * scale, one scale
// for all or two.
template <typename T, int FORMAT>
struct Factors {
  using Scale = unsigned char;
  unsigned char scale[FORMAT == kNvfp4 ? 2 : 1];
  __device__ __forceinline__ void load(
      const unsigned char* scales, const T*, int at, int group) {
#pragma unroll
    for (int i = 0; i < int(sizeof(scale)); ++i) {
      scale[i] = __ldg(scales + at / group + i);
    }
  }
  __device__ __forceinline__ float wide(int value) const {
    if constexpr (FORMAT == kNvfp4) {
      return e4m3(scale[value / 16]);
    }
    return __uint_as_float(scale[0] == 0 ? 0x400000u : unsigned(scale[0]) << 23);
  }
};

// value = code * scale + bias
template <typename T>
struct Factors<T, kAffine> {
  using Scale = T;
  T scale, bias;
  __device__ __forceinline__ void load(
      const T* scales, const T* biases, int at, int group) {
    scale = __ldg(scales + at / group);
    bias = __ldg(biases + at / group);
  }
};

// The 32 values of a lane as pairs, in load_x's order.
template <typename T, int FORMAT, int BITS>
__device__ __forceinline__ unsigned unpack(
    const unsigned (&words)[BITS], int pair, const Factors<T, FORMAT>& by) {
  using H = Half<T>;
  if constexpr (FORMAT == kAffine && BITS == 4) {
    unsigned v = (words[pair / 4] >> (4 * (pair % 4))) & 0x000f000fu;
    v |= H::kMagic;
    typename H::Two q = *reinterpret_cast<typename H::Two*>(&v);
    q = __hsub2(q, H::both(H::narrow(H::kMagicValue)));
    return bits_of(__hfma2(q, H::both(by.scale), H::both(by.bias)));
  } else if constexpr (FORMAT == kAffine) {
    // q s + b = (1 + q / 2^BITS) (s 2^BITS) + (b - s 2^BITS)
    float s = H::wide(by.scale) * float(1 << BITS);
    float b = H::wide(by.bias) - s;
    return bits_of(H::pair(
        fmaf(fraction<BITS>(words, 2 * pair), s, b),
        fmaf(fraction<BITS>(words, 2 * pair + 1), s, b)));
  } else if constexpr (BITS == 4) {
    // The bits of an e2m1 number in a half's place stand for 2^-14 of it.
    unsigned v = words[pair / 4] >> (4 * (pair % 4));
    v = (v & 0x00080008u) << 12 | (v & 0x00070007u) << 9;
    float2 q = __half22float2(*reinterpret_cast<__half2*>(&v));
    float s = by.wide(8 * (pair / 4));
    return bits_of(H::pair(q.x * 16384.0f * s, q.y * 16384.0f * s));
  } else {
    unsigned v = words[pair / 2] >> (16 * (pair % 2));
    float s = by.wide(2 * pair);
    return bits_of(H::pair(e4m3(v & 0xff) * s, e4m3(v >> 8 & 0xff) * s));
  }
}

__device__ __forceinline__ float activated(int activation, float x) {
  if (activation == 1) {
    return x / (1.0f + __expf(-x));
  }
  return 0.5f * x *
         (1.0f + tanhf(0.7978845608f * x * (1.0f + 0.044715f * x * x)));
}

}  // namespace mlxcel
)cuda";

// The kernel's body: the products of x [BLOCKS, rows, in] with BLOCKS equal
// blocks of rows of a matrix, one each, or with MLXCEL_CHOSEN of each row of x
// [rows, in] with block ids[row]. w [BLOCKS * out, words], scales and biases
// [BLOCKS * out, groups]. A second row of CUDA blocks stands for a block of the
// matrix and 8 * COLUMNS rows of x.
//   MLXCEL_NORM      x is x / sqrt(mean(x^2) + eps) * norm, eps = norm[in]; at
//                    most kHeldValues values of x
//   MLXCEL_RESIDUAL  residual, like y, is added
//   GATE             not 0: the matrix's rows are a gate's and as many others:
//                    y = activation(gate) * other; then TILES is even
inline constexpr const char* kProductSource = R"cuda(
  using namespace mlxcel;
  using By = Factors<T, FORMAT>;
  constexpr bool kSpread = BITS == 4;
  constexpr int kAhead = 2;  // chunks loaded before they are needed
  constexpr int kStep = WARPS * 128;
  constexpr int kRows = GATE ? 8 * TILES : 16 * TILES;  // of y's columns
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int g = lane >> 2, t = lane & 3;
  const int words = w_shape[1], in = words * 32 / BITS, groups = in / GROUP;
  const int all = w_shape[0] / BLOCKS, out = GATE ? all / 2 : all;
  const int first = blockIdx.x * kRows;

  // The rows of x this block reads, and the block of the matrix.
  long long block = 0, x_row = 0;
  int rows = 1;
#ifdef MLXCEL_CHOSEN
  x_row = blockIdx.y;
  block = ids[blockIdx.y];
#else
  const int pass = blockIdx.y / BLOCKS * (8 * COLUMNS);
  block = blockIdx.y % BLOCKS;
  const int x_rows_in_block = x_shape[x_ndim - 2];
  x_row = block * x_rows_in_block + pass;
  rows = min(8 * COLUMNS, x_rows_in_block - pass);
#endif

  const unsigned* w_rows[TILES][2];
  const typename By::Scale* scale_rows[TILES][2];
  const T* bias_rows[TILES][2];
#pragma unroll
  for (int i = 0; i < TILES; ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      // Rows past the last repeat it; nothing of them is stored.
      int tile = GATE ? i / 2 : i;
      long long row = block * all + min(first + 16 * tile + 8 * h + g, out - 1);
      if (GATE && i % 2 == 1) {
        row += out;
      }
      w_rows[i][h] = w + row * words;
      scale_rows[i][h] = scales + row * groups;
#ifdef MLXCEL_BIASES
      bias_rows[i][h] = biases + row * groups;
#else
      bias_rows[i][h] = nullptr;
#endif
    }
  }

  unsigned ahead[kAhead][TILES][2][BITS];
  By by[kAhead][TILES][2];
  auto load = [&](int stage, int chunk) {
    // Past the end anything finite will do: x is zero there.
    int k = chunk + 32 * t;
    int at = k < in ? k : 0;
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        load_words<BITS>(w_rows[i][h] + at / 32 * BITS, ahead[stage][i][h]);
        by[stage][i][h].load(scale_rows[i][h], bias_rows[i][h], at, GROUP);
      }
    }
  };
#pragma unroll
  for (int s = 0; s < kAhead; ++s) {
    if (warp * 128 + s * kStep < in) {
      load(s, warp * 128 + s * kStep);
    }
  }

#ifdef MLXCEL_NORM
  __shared__ __align__(16) T held[kHeldValues];
  __shared__ float squares[WARPS];
  const float eps = float(norm[in]);
  for (int row = 0; row < rows; ++row) {
    const T* from = x + (x_row + row) * in;
    float sum = 0;
    for (int i = threadIdx.x; i < in; i += 32 * WARPS) {
      float value = Half<T>::wide(from[i]);
      sum += value * value;
    }
#pragma unroll
    for (int i = 16; i > 0; i /= 2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, i);
    }
    __syncthreads();
    if (lane == 0) {
      squares[warp] = sum;
    }
    __syncthreads();
    sum = 0;
#pragma unroll
    for (int i = 0; i < WARPS; ++i) {
      sum += squares[i];
    }
    float scale = rsqrtf(sum / in + eps);
    for (int i = threadIdx.x; i < in; i += 32 * WARPS) {
      held[row * in + i] =
          Half<T>::narrow(Half<T>::wide(from[i]) * scale * norm[i]);
    }
  }
  __syncthreads();
  const T* x_rows = held;
#else
  const T* x_rows = x + x_row * in;
#endif
  const bool wide_loads = reinterpret_cast<size_t>(x_rows) % 16 == 0;

  float sums[TILES][COLUMNS][4] = {};
  for (int base = warp * 128; base < in; base += kAhead * kStep) {
#pragma unroll
    for (int s = 0; s < kAhead; ++s) {
      const int chunk = base + s * kStep, k = chunk + 32 * t;
      if (chunk < in) {
        unsigned b[COLUMNS][16];
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
          if (k < in && 8 * c + g < rows) {
            load_x<kSpread>(x_rows + (8 * c + g) * in + k, wide_loads, b[c]);
          } else {
#pragma unroll
            for (int j = 0; j < 16; ++j) {
              b[c][j] = 0;
            }
          }
        }
#pragma unroll
        for (int i = 0; i < TILES; ++i) {
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            const auto& low = ahead[s][i][0];
            const auto& high = ahead[s][i][1];
            unsigned a[4] = {
                unpack<T, FORMAT>(low, 2 * j, by[s][i][0]),
                unpack<T, FORMAT>(high, 2 * j, by[s][i][1]),
                unpack<T, FORMAT>(low, 2 * j + 1, by[s][i][0]),
                unpack<T, FORMAT>(high, 2 * j + 1, by[s][i][1])};
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c) {
              Half<T>::multiply(sums[i][c], a, b[c][2 * j], b[c][2 * j + 1]);
            }
          }
        }
      }
      if (chunk + kAhead * kStep < in) {
        load(s, chunk + kAhead * kStep);
      }
    }
  }

  __shared__ float partial[WARPS][8 * COLUMNS][16 * TILES];
#pragma unroll
  for (int i = 0; i < TILES; ++i) {
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        partial[warp][8 * c + 2 * t + j % 2][16 * i + 8 * (j / 2) + g] =
            sums[i][c][j];
      }
    }
  }
  __syncthreads();
  for (int at = threadIdx.x; at < rows * kRows; at += 32 * WARPS) {
    int row = at / kRows, j = at % kRows;
    if (first + j >= out) {
      continue;
    }
    auto summed = [&](int column) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < WARPS; ++i) {
        sum += partial[i][row][column];
      }
      return sum;
    };
    float sum;
    if constexpr (GATE != 0) {
      int column = j / 16 * 32 + j % 16;
      sum = activated(GATE, summed(column)) * summed(column + 16);
    } else {
      sum = summed(j);
    }
    long long to = (x_row + row) * out + first + j;
#ifdef MLXCEL_RESIDUAL
    sum += Half<T>::wide(residual[to]);
#endif
    y[to] = Half<T>::narrow(sum);
  }
)cuda";

}  // namespace mlxcel::graph
