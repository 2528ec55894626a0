#include "loading/expert_stacks.h"

#include "core/error.h"
#include "core/half.h"
#include "models/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

namespace mlxcel {
namespace {

using ::testing::HasSubstr;

constexpr int kExperts = 3, kInner = 32, kHidden = 64;
const std::string kStem = "model.layers.0.mlp.experts.";

NameMap names() {
  Config config(
      {{"hidden_size", kHidden},
       {"vocab_size", 4},
       {"intermediate_size", kInner},
       {"num_hidden_layers", 1},
       {"num_attention_heads", 2},
       {"num_key_value_heads", 2},
       {"head_dim", 8},
       {"num_local_experts", kExperts},
       {"num_experts_per_tok", 2}},
      "config.json");
  const Family& family = *find_by_model_type("gpt_oss");
  return NameMap(family.names, decoder_spec(family, config));
}

// Element i of the tensor is number(i).
template <typename T, typename Number>
WeightTensor filled(DType dtype, Shape shape, Number number) {
  std::byte* data = nullptr;
  WeightTensor tensor = make_weight(dtype, std::move(shape), &data);
  for (size_t i = 0; i < tensor.bytes / sizeof(T); ++i) {
    T value = T(number(i));
    std::memcpy(data + i * sizeof(T), &value, sizeof(T));
  }
  return tensor;
}

std::vector<float> floats(const WeightTensor& tensor) {
  std::vector<float> out(size_t(element_count(tensor.shape)));
  read_as_f32(tensor, out.data());
  return out;
}

TEST(ExpertStacks, TurnsMatricesAndPartsTheirRows) {
  WeightMap weights;
  auto number = [](size_t i) { return float(i); };
  weights.set(
      kStem + "gate_up_proj",
      filled<float>(DType::f32, {kExperts, kHidden, 2 * kInner}, number));
  weights.set(
      kStem + "gate_up_proj_bias",
      filled<float>(DType::f32, {kExperts, 2 * kInner}, number));
  weights.set(
      kStem + "down_proj",
      filled<float>(DType::f32, {kExperts, kInner, kHidden}, number));
  spread_expert_stacks(names(), weights, TensorData::readable);

  EXPECT_EQ(weights.size(), 5u);  // no down_proj.bias
  const WeightTensor& up = weights.at(kStem + "up_proj.weight");
  EXPECT_EQ(up.shape, (Shape{kExperts, kInner, kHidden}));
  std::vector<float> values = floats(up);
  for (int e = 0; e < kExperts; ++e) {
    for (int row = 0; row < kInner; ++row) {
      for (int in = 0; in < kHidden; ++in) {
        ASSERT_EQ(
            values[size_t((e * kInner + row) * kHidden + in)],
            float((e * kHidden + in) * 2 * kInner + 2 * row + 1));
      }
    }
  }
  std::vector<float> bias = floats(weights.at(kStem + "gate_proj.bias"));
  EXPECT_EQ(bias[0], 0);
  EXPECT_EQ(bias[1], 2);
  EXPECT_EQ(bias[kInner], 2 * kInner);
  const WeightTensor& down = weights.at(kStem + "down_proj.weight");
  EXPECT_EQ(down.shape, (Shape{kExperts, kHidden, kInner}));
  EXPECT_EQ(floats(down)[1], kHidden);
}

// The 16 values of MXFP4 and scales from the smallest to the largest, by the
// definition of the format.
TEST(ExpertStacks, RecodesMxfp4Exactly) {
  constexpr float kValues[16] = {
      0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.f, -.5f, -1, -1.5f, -2, -3, -4, -6};
  constexpr int kRows = 2 * kInner, kGroups = kHidden / 32;
  auto block = [](size_t i) { return i * 37 + i / 256; };
  auto scale = [](size_t i) { return 2 + i % 250; };
  WeightMap weights;
  weights.set(
      kStem + "gate_up_proj_blocks",
      filled<uint8_t>(DType::u8, {kExperts, kRows, kGroups, 16}, block));
  weights.set(
      kStem + "gate_up_proj_scales",
      filled<uint8_t>(DType::u8, {kExperts, kRows, kGroups}, scale));
  spread_expert_stacks(names(), weights, TensorData::readable);

  EXPECT_EQ(weights.size(), 6u);
  for (int part = 0; part < 2; ++part) {
    const std::string stem = kStem + (part == 0 ? "gate_proj" : "up_proj");
    const WeightTensor& codes = weights.at(stem + ".weight");
    ASSERT_EQ(codes.shape, (Shape{kExperts, kInner, kHidden / 4}));
    std::vector<float> scales = floats(weights.at(stem + ".scales"));
    std::vector<float> biases = floats(weights.at(stem + ".biases"));
    for (size_t i = 0; i < size_t(kExperts * kInner * kHidden); ++i) {
      size_t row = i / kHidden, in = i % kHidden;
      size_t group = (row * 2 + size_t(part)) * kGroups + in / 32;
      auto byte = uint8_t(block(group * 16 + in % 32 / 2));
      float value = kValues[in % 2 == 0 ? byte & 15 : byte >> 4];
      float expected = std::ldexp(value, int(scale(group)) - 127);
      size_t own = row * kGroups + in / 32;
      ASSERT_EQ(
          float(uint8_t(codes.data[i])) * scales[own] + biases[own], expected)
          << i;
    }
  }
}

TEST(ExpertStacks, KnowTheirShapesFromHeaders) {
  WeightMap weights;
  WeightTensor blocks{
      .dtype = DType::u8,
      .shape = {kExperts, kHidden, 1, 16},
      .bytes = size_t(kExperts * kHidden * 16)};
  WeightTensor scales{
      .dtype = DType::u8,
      .shape = {kExperts, kHidden, 1},
      .bytes = size_t(kExperts * kHidden)};
  weights.set(kStem + "down_proj_blocks", blocks);
  weights.set(kStem + "down_proj_scales", scales);
  spread_expert_stacks(names(), weights, TensorData::headers_only);
  EXPECT_EQ(
      weights.at(kStem + "down_proj.weight").shape,
      (Shape{kExperts, kHidden, kInner / 4}));
  EXPECT_EQ(
      weights.at(kStem + "down_proj.weight").bytes,
      size_t(kExperts * kHidden * kInner));
  EXPECT_EQ(
      weights.at(kStem + "down_proj.scales").shape,
      (Shape{kExperts, kHidden, 1}));
}

std::string refusal(WeightMap weights) {
  try {
    spread_expert_stacks(names(), weights, TensorData::readable);
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ExpertStacks, NameWhatDoesNotFit) {
  auto zero = [](size_t) { return 0; };
  WeightMap weights;
  weights.set(
      kStem + "down_proj",
      filled<float>(DType::f32, {kExperts, kInner, kHidden + 1}, zero));
  EXPECT_THAT(refusal(weights), HasSubstr("has the wrong shape"));
  EXPECT_THAT(refusal(weights), HasSubstr("[3, 32, 64]"));

  weights = {};
  weights.set(
      kStem + "down_proj_blocks",
      filled<uint8_t>(DType::u8, {kExperts, kHidden, 1, 16}, zero));
  EXPECT_THAT(refusal(weights), HasSubstr("down_proj_scales"));
  weights.set(
      kStem + "down_proj_scales",
      filled<uint8_t>(
          DType::u8, {kExperts, kHidden, 1}, [](size_t) { return 252; }));
  EXPECT_THAT(refusal(weights), HasSubstr("no weight has the scale 2^125"));
  weights.set(
      kStem + "down_proj_blocks",
      filled<uint32_t>(DType::u32, {kExperts, kHidden, 1, 16}, zero));
  EXPECT_THAT(refusal(weights), HasSubstr("wrong type"));
}

}  // namespace
}  // namespace mlxcel
