// Scalar reading of weights of every format, for tails, table rows and formats
// without kernels of their own. Everything here is internal to the file that
// includes it: kernel files are compiled for different instruction sets, and
// the linker must not merge their copies.
#pragma once

#include "ops/cpu/kernels/matmul_kernels.h"

#include <cstring>

namespace mlxcel::cpu {
namespace {

// No inline functions of other headers here: an unoptimized build would emit
// them with this file's instruction set.
template <typename T>
inline T load(const std::byte* address) {
  T value;
  __builtin_memcpy(&value, address, sizeof(T));
  return value;
}

inline float from_bits(uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}

inline float unpack_f16(uint16_t bits) {
  uint32_t sign = uint32_t(bits & 0x8000u) << 16;
  uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) {  // infinity, NaN
    return from_bits(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  }
  if (magnitude < 0x400u) {  // subnormal: magnitude * 2^-24
    float value = float(magnitude) * 0x1p-24f;
    return from_bits(sign | __builtin_bit_cast(uint32_t, value));
  }
  return from_bits(sign | ((magnitude << 13) + 0x38000000u));
}

inline float unpack_float(DType dtype, const std::byte* data, int64_t index) {
  if (dtype == DType::f32) {
    return load<float>(data + 4 * index);
  }
  uint16_t bits = load<uint16_t>(data + 2 * index);
  return dtype == DType::f16 ? unpack_f16(bits)
                             : from_bits(uint32_t(bits) << 16);
}

// Code `index` of a row: bits [index * bits, ...) of a little-endian stream.
inline uint32_t unpack_code(const std::byte* row, int bits, int64_t index) {
  int64_t bit = index * bits;
  uint32_t value = uint32_t(row[bit >> 3]) >> (bit & 7);
  if ((bit & 7) + bits > 8) {
    value |= uint32_t(row[(bit >> 3) + 1]) << (8 - (bit & 7));
  }
  return value & ((1u << bits) - 1);
}

// Columns [k0, k1) of a row as f32.
inline void unpack_row(
    const Matrix& m, int64_t row, int64_t k0, int64_t k1, float* out) {
  const std::byte* weight = m.weight + size_t(row) * m.weight_stride;
  if (!m.quant.packed()) {
    for (int64_t k = k0; k < k1; ++k) {
      out[k - k0] = unpack_float(m.dtype, weight, k);
    }
    return;
  }
  const std::byte* scales = m.scales + size_t(row) * m.scale_stride;
  const std::byte* biases = m.biases + size_t(row) * m.scale_stride;
  for (int64_t k = k0; k < k1;) {
    int64_t group = k / m.quant.group_size;
    float scale = unpack_float(m.dtype, scales, group);
    float bias = unpack_float(m.dtype, biases, group);
    int64_t end = (group + 1) * m.quant.group_size;
    for (end = end < k1 ? end : k1; k < end; ++k) {
      float code = float(unpack_code(weight, m.quant.bits, k));
      out[k - k0] = scale * code + bias;
    }
  }
}

}  // namespace
}  // namespace mlxcel::cpu
