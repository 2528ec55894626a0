#include "core/half.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace mlxcel {
namespace {

// The value of an f16 by its definition.
double f16_by_formula(uint16_t bits) {
  int exponent = (bits >> 10) & 0x1f;
  double mantissa = bits & 0x3ff;
  double magnitude = exponent == 0 ? std::ldexp(mantissa, -24)
                                   : std::ldexp(1024 + mantissa, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

bool f16_is_finite(uint16_t bits) {
  return (bits & 0x7c00) != 0x7c00;
}

TEST(HalfTest, EveryF16WidensExactlyAndNarrowsBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    if (!f16_is_finite(uint16_t(bits))) {
      continue;
    }
    float wide = f16_to_f32(uint16_t(bits));
    ASSERT_EQ(double(wide), f16_by_formula(uint16_t(bits))) << bits;
    ASSERT_EQ(std::signbit(wide), (bits & 0x8000) != 0) << bits;
    ASSERT_EQ(f32_to_f16(wide), bits);
  }
}

TEST(HalfTest, F16RoundsToNearestEvenBetweenAllNeighbours) {
  for (uint32_t bits = 0; bits < 0x7bff; ++bits) {
    double low = f16_by_formula(uint16_t(bits));
    double high = f16_by_formula(uint16_t(bits + 1));
    float middle = float((low + high) / 2);  // exact: 12 bits
    uint16_t even = uint16_t(bits % 2 == 0 ? bits : bits + 1);
    ASSERT_EQ(f32_to_f16(middle), even) << bits;
    ASSERT_EQ(f32_to_f16(std::nextafter(middle, 0.0f)), bits) << bits;
    ASSERT_EQ(f32_to_f16(std::nextafter(middle, 1e9f)), bits + 1) << bits;
    ASSERT_EQ(f32_to_f16(-middle), even | 0x8000) << bits;
  }
}

TEST(HalfTest, F16Limits) {
  float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(f32_to_f16(65504.0f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65519.99f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(f32_to_f16(-1e38f), 0xfc00);
  EXPECT_EQ(f32_to_f16(infinity), 0x7c00);
  EXPECT_EQ(f16_to_f32(0x7c00), infinity);
  EXPECT_EQ(f16_to_f32(0xfc00), -infinity);
  EXPECT_EQ(f32_to_f16(0x1p-25f), 0);  // ties to even
  EXPECT_EQ(f32_to_f16(0x1.000002p-25f), 1);
  EXPECT_EQ(f32_to_f16(-0.0f), 0x8000);
}

TEST(HalfTest, NanStaysNan) {
  float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(nan))));
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(nan))));
  // A payload only in the low bits must not turn into infinity.
  float low_payload = std::bit_cast<float>(0x7f800001u);
  EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(low_payload))));
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(low_payload))));
  EXPECT_TRUE(std::isnan(f16_to_f32(0x7c01)));
}

TEST(HalfTest, EveryBf16WidensAndNarrowsBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    float wide = bf16_to_f32(uint16_t(bits));
    if (!std::isnan(wide)) {
      ASSERT_EQ(f32_to_bf16(wide), bits);
    }
  }
}

TEST(HalfTest, Bf16RoundsToNearestEven) {
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f808000u)), 0x3f80);  // tie
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f818000u)), 0x3f82);  // tie
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f808001u)), 0x3f81);
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f807fffu)), 0x3f80);
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
}

TEST(HalfTest, LoadsAtAnyAlignment) {
  unsigned char bytes[] = {0xff, 0x00, 0x00, 0x80, 0x3f, 0xff};
  EXPECT_EQ(load_unaligned<float>(bytes + 1), 1.0f);
}

}  // namespace
}  // namespace mlxcel
