// Norms and sums of the CPU backend against double precision.
#include "core/error.h"
#include "core/half.h"
#include "ops/cpu/elementwise.h"
#include "ops/cpu/kernels/norm_kernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

namespace mlxcel::cpu {
namespace {

std::vector<float> random_values(int64_t count, uint32_t seed, float mean = 0) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(mean, 1);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    value = normal(generator);
  }
  return values;
}

// The values as a tensor of a type, at an odd address.
WeightTensor weight_of(const std::vector<float>& values, DType dtype) {
  size_t item = size_of(dtype);
  auto owner =
      std::make_shared<std::vector<std::byte>>(values.size() * item + 1);
  std::byte* to = owner->data() + 1;
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t half =
        dtype == DType::f16 ? f32_to_f16(values[i]) : f32_to_bf16(values[i]);
    std::memcpy(
        to + i * item,
        dtype == DType::f32 ? static_cast<const void*>(&values[i]) : &half,
        item);
  }
  WeightTensor tensor;
  tensor.dtype = dtype;
  tensor.shape = {int64_t(values.size())};
  tensor.data = to;
  tensor.bytes = values.size() * item;
  tensor.owner = owner;
  return tensor;
}

double as_stored(float value, DType dtype) {
  if (dtype == DType::f16) {
    return double(f16_to_f32(f32_to_f16(value)));
  }
  return double(dtype == DType::bf16 ? bf16_to_f32(f32_to_bf16(value)) : value);
}

using Variant = std::tuple<Isa, DType, NormKind>;
class NormTest : public ::testing::TestWithParam<Variant> {};

TEST_P(NormTest, MatchesTheLoop) {
  auto [isa, dtype, kind] = GetParam();
  for (int64_t size : {1, 7, 16, 64, 72, 100, 576, 2049}) {
    for (bool with_weight : {false, true}) {
      // Far from 0, so that a norm which mixes up the two kinds shows.
      std::vector<float> x = random_values(size, 1, 3);
      std::vector<float> weight = random_values(size, 2);
      std::vector<float> bias = random_values(size, 3);
      NormWeights weights;
      weights.kind = kind;
      weights.size = size;
      weights.eps = 1e-5f;
      if (with_weight) {
        weights.weight_offset = 1;
        weights.weight = weight_of(weight, dtype);
        if (kind == NormKind::layer) {
          weights.bias = weight_of(bias, dtype);
        }
      }
      std::vector<float> y(x.size());
      CpuNorm norm(weights, isa);
      norm.apply(x.data(), y.data());

      double mean = 0, square = 0;
      for (float value : x) {
        mean += kind == NormKind::layer ? double(value) / double(size) : 0;
      }
      for (float value : x) {
        square += (double(value) - mean) * (double(value) - mean);
      }
      double factor = 1 / std::sqrt(square / double(size) + 1e-5);
      for (size_t i = 0; i < x.size(); ++i) {
        double wanted = (double(x[i]) - mean) * factor;
        if (with_weight) {
          wanted *= as_stored(weight[i], dtype) + 1;
          wanted += weights.bias ? as_stored(bias[i], dtype) : 0;
        }
        // A single value of a layer norm is 0 / sqrt(eps).
        EXPECT_NEAR(double(y[i]), wanted, 4e-6 * (1 + std::abs(wanted)))
            << size << " values, value " << i;
      }
      std::vector<float> in_place = x;
      norm.apply(in_place.data(), in_place.data());
      EXPECT_EQ(in_place, y);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All,
    NormTest,
    ::testing::Combine(
        ::testing::ValuesIn(supported_isas()),
        ::testing::Values(DType::f32, DType::f16, DType::bf16),
        ::testing::Values(NormKind::rms, NormKind::layer)),
    [](const auto& variant) {
      return cat(
          name_of(std::get<0>(variant.param)),
          "_",
          name_of(std::get<1>(variant.param)),
          std::get<2>(variant.param) == NormKind::rms ? "_rms" : "_layer");
    });

TEST(Norm, RefusesAWeightOfAnotherSize) {
  NormWeights weights;
  weights.size = 8;
  weights.weight = weight_of(random_values(9, 1), DType::f32);
  try {
    CpuNorm norm(weights, Isa::portable);
    FAIL() << "no exception";
  } catch (const ShapeError& error) {
    EXPECT_EQ(error.summary(), "norm: the weight does not fit");
    EXPECT_EQ(error.why(), "weight [9], features [8]");
  }
}

TEST(Elementwise, SumsAndNormsOverRowsDoNotDependOnThreads) {
  for (Isa isa : supported_isas()) {
    for (int64_t rows : {1, 3, 200}) {
      constexpr int64_t kCols = 203;
      std::vector<float> x = random_values(rows * kCols, 1);
      std::vector<float> y = random_values(rows * kCols, 2);
      std::vector<std::vector<float>> sums, norms;
      for (int threads : {1, 2, 5}) {
        BackendOptions options;
        options.threads = threads;
        Context context(options);
        context.isa = isa;
        Tensor a = context.make(rows, kCols), b = context.make(rows, kCols);
        std::memcpy(data(a), x.data(), x.size() * sizeof(float));
        std::memcpy(data(b), y.data(), y.size() * sizeof(float));
        Tensor sum = add(context, a, b, 0.25f);
        sums.emplace_back(data(sum), data(sum) + rows * kCols);
        NormWeights weights;
        weights.size = kCols;
        Tensor normed = norm(context, a, CpuNorm(weights, isa));
        norms.emplace_back(data(normed), data(normed) + rows * kCols);
      }
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_FLOAT_EQ(sums[0][i], x[i] + 0.25f * y[i]);
      }
      EXPECT_EQ(sums[1], sums[0]);
      EXPECT_EQ(sums[2], sums[0]);
      EXPECT_EQ(norms[1], norms[0]);
      EXPECT_EQ(norms[2], norms[0]);
    }
  }
}

TEST(BufferPool, ReusesAndAligns) {
  BackendOptions options;
  options.threads = 1;
  Context context(options);
  const float* first = nullptr;
  {
    Tensor a = context.make(3, 100);
    first = data(a);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 64, 0u);
  }
  EXPECT_EQ(data(context.make(3, 100)), first);
  Tensor kept = context.make(3, 100), other = context.make(3, 100);
  EXPECT_NE(data(kept), data(other));
}

class XieluTest : public ::testing::TestWithParam<Isa> {};

INSTANTIATE_TEST_SUITE_P(
    Isas,
    XieluTest,
    ::testing::ValuesIn(supported_isas()),
    [](const auto& isa) { return std::string(name_of(isa.param)); });

// Also where e^x - 1 cancels, and where it is nearly -1.
TEST_P(XieluTest, MatchesTheFormula) {
  Xielu numbers{.alpha_p = 0.8f, .alpha_n = 1.25f, .beta = 0.5f, .eps = -1e-6f};
  std::vector<float> x{0, -0.0f};
  for (float size = 1e-9f; size < 200; size *= 1.37f) {
    x.push_back(size);
    x.push_back(-size);
  }
  std::vector<float> got(x.size());
  norm_kernels(GetParam())
      .xielu(x.data(), numbers, got.data(), int64_t(x.size()));
  for (size_t i = 0; i < x.size(); ++i) {
    double v = double(x[i]);
    double curve = v > 0
                       ? double(numbers.alpha_p) * v * v
                       : double(numbers.alpha_n) *
                             (std::expm1(std::min(v, double(numbers.eps))) - v);
    double expected = curve + double(numbers.beta) * v;
    // The two parts cancel in part: the bound is on them.
    double size = std::abs(curve) + std::abs(double(numbers.beta) * v);
    ASSERT_NEAR(got[i], expected, 1e-6 * size + 2e-12) << x[i];
  }
}

}  // namespace
}  // namespace mlxcel::cpu
