// Scalar conversions between f32 and the 16-bit float types. Round to nearest,
// ties to even. Kernels have their own vector forms.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace mlxcel {

inline float bf16_to_f32(uint16_t bits) {
  return std::bit_cast<float>(uint32_t(bits) << 16);
}

inline uint16_t f32_to_bf16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {  // NaN stays a quiet NaN
    return uint16_t((bits >> 16) | 0x40);
  }
  return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float f16_to_f32(uint16_t bits);
uint16_t f32_to_f16(float value);

// Reads a value of any alignment.
template <typename T>
T load_unaligned(const void* address) {
  T value;
  std::memcpy(&value, address, sizeof(T));
  return value;
}

}  // namespace mlxcel
