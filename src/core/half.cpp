#include "core/half.h"

namespace mlxcel {

namespace {

// IEEE 754 binary16: 1 sign, 5 exponent (bias 15), 10 mantissa bits.
constexpr uint32_t kF32Infinity = 0x7f800000u;
constexpr uint32_t kSmallestNormalF16 = 0x38800000u;  // 2^-14 as f32
// 65520, halfway between the largest f16 and the next step: rounds to infinity.
constexpr uint32_t kF16Overflow = 0x477ff000u;

}  // namespace

float f16_to_f32(uint16_t bits) {
  uint32_t sign = uint32_t(bits & 0x8000u) << 16;
  uint32_t exponent = (bits >> 10) & 0x1fu;
  uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1f) {
    uint32_t quiet = mantissa != 0 ? 0x400000u : 0;
    return std::bit_cast<float>(sign | kF32Infinity | quiet | mantissa << 13);
  }
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact in f32
    float magnitude = float(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t f32_to_f16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  uint16_t sign = uint16_t((bits >> 16) & 0x8000u);
  uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > kF32Infinity) {  // NaN: keep the top payload bits, quiet
    return uint16_t(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  }
  if (magnitude >= kF16Overflow) {
    return uint16_t(sign | 0x7c00u);
  }
  if (magnitude < kSmallestNormalF16) {
    // Adding 0.5 puts the last kept bit, 2^-24, at the end of an f32 mantissa,
    // so that the addition itself rounds to nearest even.
    float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return uint16_t(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return uint16_t(sign | ((rounded - 0x38000000u) >> 13));
}

}  // namespace mlxcel
