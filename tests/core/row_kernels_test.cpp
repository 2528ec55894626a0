#include "core/row_kernels.h"

#include "core/half.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace mlxcel {
namespace {

std::vector<float> random_floats(size_t n, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(n);
  for (float& value : out) {
    value = normal(engine);
  }
  return out;
}

TEST(RowKernels, ConvertsEveryHalfAtEveryOffset) {
  for (DType dtype : {DType::bf16, DType::f16}) {
    for (size_t offset : {0u, 1u, 3u}) {
      std::vector<char> source(2 * 65536 + offset);
      for (uint32_t bits = 0; bits < 65536; ++bits) {
        uint16_t half = uint16_t(bits);
        std::memcpy(source.data() + offset + 2 * bits, &half, 2);
      }
      std::vector<float> out(65536);
      convert_to_f32(dtype, source.data() + offset, 65536, out.data());
      std::vector<char> back(2 * 65536 + offset);
      convert_from_f32(out.data(), 65536, dtype, back.data() + offset);
      for (uint32_t bits = 0; bits < 65536; ++bits) {
        uint16_t half = uint16_t(bits);
        float expected =
            dtype == DType::bf16 ? bf16_to_f32(half) : f16_to_f32(half);
        if (std::isnan(expected)) {
          EXPECT_TRUE(std::isnan(out[bits])) << bits;
          continue;
        }
        EXPECT_EQ(out[bits], expected) << bits;
        EXPECT_EQ(
            load_unaligned<uint16_t>(back.data() + offset + 2 * bits), half);
      }
    }
  }
}

TEST(RowKernels, RoundsToNearestEven) {
  // 1 + 2^-8 lies between the bf16 numbers 1 and 1 + 2^-7: even is 1;
  // 1 + 3 * 2^-8 between 1 + 2^-7 and 1 + 2^-6: even is 1 + 2^-6.
  std::vector<float> values(19, 1 + 0x1p-8f);
  values[1] = 1 + 3 * 0x1p-8f;
  values[2] = std::numeric_limits<float>::infinity();
  values[3] = std::numeric_limits<float>::quiet_NaN();
  values[4] = std::numeric_limits<float>::max();
  std::vector<uint16_t> out(values.size());
  convert_from_f32(values.data(), int64_t(values.size()), DType::bf16, &out[0]);
  EXPECT_EQ(bf16_to_f32(out[0]), 1.0f);
  EXPECT_EQ(bf16_to_f32(out[18]), 1.0f);
  EXPECT_EQ(bf16_to_f32(out[1]), 1 + 0x1p-6f);
  EXPECT_TRUE(std::isinf(bf16_to_f32(out[2])));
  EXPECT_TRUE(std::isnan(bf16_to_f32(out[3])));
  EXPECT_TRUE(std::isinf(bf16_to_f32(out[4])));
}

TEST(RowKernels, AddsLowRankProducts) {
  for (int64_t rows : {1, 4, 7}) {
    for (int64_t n : {1, 31, 64, 130}) {
      for (int64_t rank : {1, 5, 16}) {
        std::vector<float> y = random_floats(size_t(rows * n), 1);
        std::vector<float> b = random_floats(size_t(rows * rank), 2);
        std::vector<float> a = random_floats(size_t(rank * n), 3);
        std::vector<float> got = y;
        row_kernels().add_low_rank(
            got.data(), rows, n, b.data(), rank, a.data());
        for (int64_t i = 0; i < rows; ++i) {
          for (int64_t j = 0; j < n; ++j) {
            double sum = y[size_t(i * n + j)];
            for (int64_t r = 0; r < rank; ++r) {
              sum += double(b[size_t(i * rank + r)]) * a[size_t(r * n + j)];
            }
            EXPECT_NEAR(got[size_t(i * n + j)], sum, 1e-5);
          }
        }
      }
    }
  }
}

TEST(RowKernels, CombinesAndSumsDots) {
  for (int64_t n : {1, 8, 100, 1027}) {
    std::vector<float> x = random_floats(size_t(n), 4);
    std::vector<float> y = random_floats(size_t(n), 5);
    double sums[3] = {0, 0, 0};
    row_kernels().add_dots(x.data(), y.data(), n, sums);
    double expected[3] = {0, 0, 0};
    for (int64_t i = 0; i < n; ++i) {
      double a = x[size_t(i)];
      double b = y[size_t(i)];
      expected[0] += a * a;
      expected[1] += b * b;
      expected[2] += a * b;
    }
    for (int k = 0; k < 3; ++k) {
      EXPECT_NEAR(sums[k], expected[k], 1e-10 * double(n));
    }
    std::vector<float> got = y;
    row_kernels().combine(got.data(), 0.25f, x.data(), -2.0f, n);
    for (int64_t i = 0; i < n; ++i) {
      EXPECT_EQ(got[size_t(i)], 0.25f * y[size_t(i)] + -2.0f * x[size_t(i)]);
    }
  }
}

}  // namespace
}  // namespace mlxcel
