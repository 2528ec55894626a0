// The text of the CUDA kernels for attention where every row is a sequence's
// next token: the rows' keys and values go into the paged cache, and the rows
// attend to it where it lies.
//
// `table` (i32): the number W of blocks a row has room for, then for each row
// its position, the slot its key and value go to, and W cache blocks.
// Caches are [slots, KV_HEADS, DIM] in the type of activations.
#pragma once

namespace mlxcel::graph {

inline constexpr const char* kAttentionHeader = R"cuda(
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace mlxcel {

__device__ __forceinline__ float wide(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ __forceinline__ float wide(__half x) {
  return __half2float(x);
}
__device__ __forceinline__ void narrow(float x, __nv_bfloat16& to) {
  to = __float2bfloat16_rn(x);
}
__device__ __forceinline__ void narrow(float x, __half& to) {
  to = __float2half_rn(x);
}
__device__ __forceinline__ void narrow(float x, float& to) {
  to = x;
}

// The two numbers of a word.
template <typename T>
__device__ __forceinline__ float2 both(unsigned word);
template <>
__device__ __forceinline__ float2 both<__nv_bfloat16>(unsigned word) {
  return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)};
}
template <>
__device__ __forceinline__ float2 both<__half>(unsigned word) {
  return __half22float2(*reinterpret_cast<__half2*>(&word));
}

// Sixteen numbers.
template <typename T>
__device__ __forceinline__ void load_sixteen(const T* from, float (&to)[16]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    uint4 v = reinterpret_cast<const uint4*>(from)[i];
    unsigned words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float2 pair = both<T>(words[j]);
      to[8 * i + 2 * j] = pair.x;
      to[8 * i + 2 * j + 1] = pair.y;
    }
  }
}

// Row `row` of the table.
struct TableRow {
  int position, slot;
  const int* blocks;
  __device__ __forceinline__ TableRow(const int* table, int row) {
    const int* at = table + 1 + row * (2 + table[0]);
    position = at[0];
    slot = at[1];
    blocks = at + 2;
  }
};

}  // namespace mlxcel
)cuda";

// A warp answers one head of a row of qkv [rows, STRIDE]: it normalizes it
// (MLXCEL_Q_NORM, MLXCEL_K_NORM: x / sqrt(mean(x^2) + eps) * factors, with eps
// behind the factors), turns the first TURNED features of queries and keys by
// the angles position / periods and multiplies them by periods[TURNED / 2], and
// puts queries into y [rows, HEADS, DIM], keys and values into the caches. No
// other operation reads their slots before y is there.
inline constexpr const char* kPlaceSource = R"cuda(
  using namespace mlxcel;
  constexpr int kEach = DIM / 32;  // features of a lane
  constexpr int kPairs = TURNED > 0 ? TURNED / 2 : 1;
  __shared__ float held[WARPS][DIM];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int head = blockIdx.x * WARPS + warp, row = blockIdx.y;
  if (head >= HEADS + 2 * KV_HEADS) {
    return;
  }
  const TableRow at(table, row);
  const T* from = qkv + (long long)row * STRIDE + head * DIM;
  float v[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    v[i] = wide(from[lane * kEach + i]);
  }
  const bool query = head < HEADS, value = head >= HEADS + KV_HEADS;
  const float* factors = nullptr;
#ifdef MLXCEL_Q_NORM
  factors = query ? q_factors : factors;
#endif
#ifdef MLXCEL_K_NORM
  factors = !query && !value ? k_factors : factors;
#endif
  if (factors) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      sum = fmaf(v[i], v[i], sum);
    }
#pragma unroll
    for (int i = 16; i > 0; i /= 2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, i);
    }
    const float factor = rsqrtf(sum / DIM + factors[DIM]);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      v[i] *= factor * factors[lane * kEach + i];
    }
  }
  if (TURNED > 0 && !value) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      held[warp][lane * kEach + i] = v[i];
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int e = lane * kEach + i;
      if (e < TURNED) {
        const bool first = PAIRED ? e % 2 == 0 : e < kPairs;
        const int pair = PAIRED ? e / 2 : e % kPairs;
        const int apart = PAIRED ? 1 : kPairs;
        const float other = held[warp][first ? e + apart : e - apart];
        float s, c;
        sincosf(float(at.position) / periods[pair], &s, &c);
        v[i] = v[i] * c + (first ? -other : other) * s;
        v[i] *= periods[kPairs];
      }
    }
  }
  T* to;
  if (query) {
    to = y + ((long long)row * HEADS + head) * DIM;
  } else if (value) {
    to = const_cast<T*>(values) +
         ((long long)at.slot * KV_HEADS + head - HEADS - KV_HEADS) * DIM;
  } else {
    to = const_cast<T*>(keys) +
         ((long long)at.slot * KV_HEADS + head - HEADS) * DIM;
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    narrow(v[i], to[lane * kEach + i]);
  }
)cuda";

// A block answers GROUP query heads of one key head and row, for one of
// gridDim.y equal runs of the keys in sight (the last WINDOW, or all). LANES
// lanes hold a key, 16 features each; what the sets of lanes and the warps have
// seen meets at the end. SCALE holds the bits of the scores' factor.
//   PARTS 0: y [rows, HEADS, DIM]
//   PARTS 1: y f32 [rows, HEADS, gridDim.y, DIM + 2]: sums of the values, the
//            greatest score and the sum of weights; kMergeSource joins them
inline constexpr const char* kAttendSource = R"cuda(
  using namespace mlxcel;
  constexpr int kLanes = DIM / 16, kSets = 32 / kLanes;
  constexpr int kParts = HEADS / KV_HEADS / GROUP;  // blocks of a key head
  constexpr float kNone = -1e30f;  // below any score
  __shared__ float tops[WARPS][GROUP], weights[WARPS][GROUP];
  __shared__ float sums[WARPS][GROUP][DIM];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int set = lane / kLanes, feature = lane % kLanes * 16;
  const int kv = blockIdx.x / kParts, row = blockIdx.z;
  const int head = (kv * kParts + blockIdx.x % kParts) * GROUP;

  const TableRow at(table, row);
  const int seen = at.position + 1;
  const int first = WINDOW > 0 && seen > WINDOW ? seen - WINDOW : 0;
  const int run = (seen - first + gridDim.y - 1) / gridDim.y;
  const int begin = first + blockIdx.y * run, end = min(begin + run, seen);

  // Scores in units of log2(e), as 2^x is what the device has.
  const float scale = __int_as_float(SCALE) * 1.44269504f;
  float query[GROUP][16], sum[GROUP][16], top[GROUP], weight[GROUP];
#pragma unroll
  for (int g = 0; g < GROUP; ++g) {
    load_sixteen(
        q + ((long long)row * HEADS + head + g) * DIM + feature, query[g]);
    top[g] = kNone;
    weight[g] = 0;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      query[g][i] *= scale;
      sum[g][i] = 0;
    }
  }

  for (int base = begin + warp * kSets; base < end; base += WARPS * kSets) {
    const bool mine = base + set < end;
    const int key = mine ? base + set : end - 1;
    const long long place =
        ((long long)(at.blocks[key / BLOCK] * BLOCK + key % BLOCK) * KV_HEADS +
         kv) * DIM + feature;
    float k[16], v[16];
    load_sixteen(keys + place, k);
    load_sixteen(values + place, v);
#pragma unroll
    for (int g = 0; g < GROUP; ++g) {
      float score = 0;
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        score = fmaf(query[g][i], k[i], score);
      }
#pragma unroll
      for (int i = 1; i < kLanes; i *= 2) {
        score += __shfl_xor_sync(0xffffffffu, score, i);
      }
      const float highest = mine ? fmaxf(top[g], score) : top[g];
      const float old = exp2f(top[g] - highest);
      const float p = mine ? exp2f(score - highest) : 0.0f;
      top[g] = highest;
      weight[g] = fmaf(weight[g], old, p);
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        sum[g][i] = fmaf(sum[g][i], old, p * v[i]);
      }
    }
  }

#pragma unroll
  for (int g = 0; g < GROUP; ++g) {
    float highest = top[g];
#pragma unroll
    for (int i = kLanes; i < 32; i *= 2) {
      highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, i));
    }
    const float part = exp2f(top[g] - highest);
    float total = weight[g] * part;
#pragma unroll
    for (int i = kLanes; i < 32; i *= 2) {
      total += __shfl_xor_sync(0xffffffffu, total, i);
    }
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      float s = sum[g][j] * part;
#pragma unroll
      for (int i = kLanes; i < 32; i *= 2) {
        s += __shfl_xor_sync(0xffffffffu, s, i);
      }
      if (set == 0) {
        sums[warp][g][feature + j] = s;
      }
    }
    if (lane == 0) {
      tops[warp][g] = highest;
      weights[warp][g] = total;
    }
  }
  __syncthreads();

  for (int i = threadIdx.x; i < GROUP * DIM; i += WARPS * 32) {
    const int g = i / DIM, d = i % DIM;
    float highest = kNone;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
      highest = fmaxf(highest, tops[w][g]);
    }
    float total = 0, s = 0;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
      const float part = exp2f(tops[w][g] - highest);
      total = fmaf(weights[w][g], part, total);
      s = fmaf(sums[w][g][d], part, s);
    }
    const long long out = (long long)row * HEADS + head + g;
    if constexpr (PARTS == 0) {
      narrow(s / total, y[out * DIM + d]);
    } else {
      float* to = reinterpret_cast<float*>(y) +
                  (out * gridDim.y + blockIdx.y) * (DIM + 2);
      to[d] = s;
      if (d == 0) {
        to[DIM] = highest;
        to[DIM + 1] = total;
      }
    }
  }
)cuda";

// Joins what PARTS 1 of kAttendSource left: x f32 [rows * heads, RUNS, DIM + 2]
// to y [rows * heads, DIM], a block a head. A run without keys has the weight
// zero.
inline constexpr const char* kMergeSource = R"cuda(
  using namespace mlxcel;
  const float* from = x + (long long)blockIdx.x * RUNS * (DIM + 2);
  float highest = -1e30f;
#pragma unroll
  for (int r = 0; r < RUNS; ++r) {
    highest = fmaxf(highest, from[r * (DIM + 2) + DIM]);
  }
  float total = 0, s = 0;
#pragma unroll
  for (int r = 0; r < RUNS; ++r) {
    const float* part = from + r * (DIM + 2);
    const float factor = exp2f(part[DIM] - highest);
    total = fmaf(part[DIM + 1], factor, total);
    s = fmaf(part[threadIdx.x], factor, s);
  }
  narrow(s / total, y[(long long)blockIdx.x * DIM + threadIdx.x]);
)cuda";

}  // namespace mlxcel::graph
