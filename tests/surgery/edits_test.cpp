#include "surgery/edits.h"

#include "core/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

namespace mlxcel {
namespace {

WeightTensor tensor_of(const std::vector<float>& values, Shape shape) {
  std::byte* data = nullptr;
  WeightTensor out = make_weight(DType::f32, std::move(shape), &data);
  std::memcpy(data, values.data(), values.size() * 4);
  return out;
}

std::vector<float> random_values(size_t n, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(n);
  for (float& value : out) {
    value = normal(engine);
  }
  return out;
}

std::vector<float> run(Edit& edit, const WeightTensor& target) {
  ThreadPool pool(2);
  edit.prepare(pool, WeightMap());
  std::vector<float> out(size_t(element_count(target.shape)));
  std::memcpy(out.data(), target.data, target.bytes);
  edit.apply(
      target, 0, int64_t(out.size()), reinterpret_cast<std::byte*>(out.data()));
  return out;
}

// Shoemake's formula on the unnormalized tensors, in f64.
std::vector<double> slerp(
    const std::vector<float>& a, const std::vector<float>& b, double ratio) {
  double aa = 0;
  double bb = 0;
  double ab = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    aa += double(a[i]) * a[i];
    bb += double(b[i]) * b[i];
    ab += double(a[i]) * b[i];
  }
  double from_a = 1 - ratio;
  double from_b = ratio;
  double cosine = ab / std::sqrt(aa * bb);
  if (aa > 0 && bb > 0 && std::abs(cosine) <= 0.9995) {
    double angle = std::acos(cosine);
    from_a = std::sin((1 - ratio) * angle) / std::sin(angle);
    from_b = std::sin(ratio * angle) / std::sin(angle);
  }
  std::vector<double> out(a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    out[i] = from_a * a[i] + from_b * b[i];
  }
  return out;
}

void expect_slerp(const std::vector<float>& a, const std::vector<float>& b) {
  for (double ratio : {0.0, 0.3, 0.5, 1.0}) {
    Shape shape = {int64_t(a.size())};
    WeightTensor target = tensor_of(a, shape);
    auto edit = interpolate_edit(
        tensor_of(a, shape), tensor_of(b, shape), ratio, Interpolation::slerp);
    std::vector<float> got = run(*edit, target);
    std::vector<double> want = slerp(a, b, ratio);
    for (size_t i = 0; i < a.size(); ++i) {
      ASSERT_NEAR(got[i], want[i], 1e-6) << "ratio " << ratio << " at " << i;
    }
  }
}

TEST(Interpolate, SlerpEqualsTheFormula) {
  std::vector<float> a = random_values(200000, 1);
  std::vector<float> b = random_values(200000, 2);
  expect_slerp(a, b);
  // Correlated, so that the angle matters.
  for (size_t i = 0; i < a.size(); ++i) {
    b[i] = 0.7f * a[i] + 0.3f * b[i];
  }
  expect_slerp(a, b);
}

TEST(Interpolate, SlerpOfNearParallelOppositeAndZeroTensorsIsLinear) {
  std::vector<float> a = random_values(1000, 3);
  std::vector<float> near = a;
  std::vector<float> opposite = a;
  std::vector<float> zero(a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    near[i] *= 1 + 1e-3f * float(i % 2);
    opposite[i] = -a[i];
  }
  expect_slerp(a, near);
  expect_slerp(a, a);
  expect_slerp(a, opposite);
  expect_slerp(a, zero);
  expect_slerp(zero, a);
  expect_slerp(zero, zero);
}

TEST(Interpolate, LerpOfBf16RoundsTheF32ResultOnce) {
  constexpr int64_t n = 203;  // whole steps and a rest
  std::byte* data[3];
  WeightTensor a = make_weight(DType::bf16, {n}, &data[0]);
  WeightTensor b = make_weight(DType::bf16, {n}, &data[1]);
  WeightTensor target = make_weight(DType::bf16, {n}, &data[2]);
  std::vector<float> x = random_values(n, 5);
  std::vector<float> y = random_values(n, 6);
  std::vector<uint16_t> want;
  for (size_t i = 0; i < n; ++i) {
    uint16_t from_a = f32_to_bf16(x[i]);
    uint16_t from_b = f32_to_bf16(y[i]);
    std::memcpy(data[0] + 2 * i, &from_a, 2);
    std::memcpy(data[1] + 2 * i, &from_b, 2);
    float left = 0.75f * bf16_to_f32(from_a);
    float right = 0.25f * bf16_to_f32(from_b);
    want.push_back(f32_to_bf16(left + right));
  }
  auto edit = interpolate_edit(a, b, 0.25, Interpolation::lerp);
  edit->apply(target, 0, n, data[2]);
  EXPECT_EQ(std::memcmp(data[2], want.data(), 2 * n), 0);
}

TEST(Add, RoundsTheSourceToTheBaseAndTheSumOnce) {
  std::byte* data = nullptr;
  WeightTensor base = make_weight(DType::bf16, {1}, &data);
  uint16_t one = f32_to_bf16(1.0f);
  std::memcpy(data, &one, 2);
  // 1.00390625 rounds to 1 in bf16 (even), so 1 + 0.5 * 1 = 1.5.
  auto edit = add_edit(tensor_of({1 + 0x1p-8f}, {1}), 0.5f);
  uint16_t result = one;
  edit->apply(base, 0, 1, reinterpret_cast<std::byte*>(&result));
  EXPECT_EQ(bf16_to_f32(result), 1.5f);
}

TEST(Zero, ClearsRowsAndColumns) {
  std::vector<float> values(12);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = float(i + 1);
  }
  WeightTensor target = tensor_of(values, {3, 4});
  auto edit = zero_edit({{{1, 2}}, {{0, 1}, {3, 4}}});
  std::vector<float> got = run(*edit, target);
  EXPECT_EQ(got, (std::vector<float>{0, 2, 3, 0, 0, 0, 0, 0, 0, 10, 11, 0}));
}

}  // namespace
}  // namespace mlxcel
