#include "core/dtype.h"

#include <gtest/gtest.h>

namespace mlxcel {
namespace {

TEST(DTypeTest, NamesAreTheSafetensorsHeaderNames) {
  EXPECT_EQ(name_of(DType::boolean), "BOOL");
  EXPECT_EQ(name_of(DType::u32), "U32");
  EXPECT_EQ(name_of(DType::f8_e4m3), "F8_E4M3");
  EXPECT_EQ(name_of(DType::bf16), "BF16");
  EXPECT_EQ(name_of(DType::f64), "F64");
  EXPECT_EQ(fmt::format("{}", DType::f16), "F16");
}

TEST(DTypeTest, EveryNameReadsBack) {
  for (int i = 0; i <= int(DType::f64); ++i) {
    EXPECT_EQ(dtype_from_name(name_of(DType(i))), DType(i));
  }
  EXPECT_EQ(dtype_from_name("bf16"), std::nullopt);  // case counts
  EXPECT_EQ(dtype_from_name(""), std::nullopt);
  EXPECT_EQ(dtype_from_name("F4"), std::nullopt);
}

TEST(DTypeTest, Sizes) {
  EXPECT_EQ(size_of(DType::boolean), 1u);
  EXPECT_EQ(size_of(DType::f8_e8m0), 1u);
  EXPECT_EQ(size_of(DType::i16), 2u);
  EXPECT_EQ(size_of(DType::bf16), 2u);
  EXPECT_EQ(size_of(DType::f32), 4u);
  EXPECT_EQ(size_of(DType::u64), 8u);
}

TEST(DTypeTest, FloatsAreTheTypesThatAreComputedIn) {
  EXPECT_TRUE(is_float(DType::f16));
  EXPECT_TRUE(is_float(DType::f64));
  EXPECT_FALSE(is_float(DType::f8_e5m2));
  EXPECT_FALSE(is_float(DType::u32));
}

TEST(ShapeTest, CountsAndPrints) {
  EXPECT_EQ(element_count({}), 1);
  EXPECT_EQ(element_count({2, 3, 5}), 30);
  EXPECT_EQ(element_count({4, 0}), 0);
  EXPECT_EQ(to_string(Shape{}), "[]");
  EXPECT_EQ(to_string(Shape{2, 3}), "[2, 3]");
}

}  // namespace
}  // namespace mlxcel
