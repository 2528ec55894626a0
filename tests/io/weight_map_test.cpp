#include "io/weight_map.h"

#include "core/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

namespace mlxcel {
namespace {

using ::testing::ElementsAre;

WeightTensor tensor_of(DType dtype, Shape shape) {
  std::byte* data = nullptr;
  return make_weight(dtype, std::move(shape), &data);
}

template <typename Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return "no error";
}

TEST(WeightMapTest, FindsReplacesAndRenames) {
  WeightMap weights;
  weights.set("b", tensor_of(DType::f32, {2}));
  weights.set("a", tensor_of(DType::f16, {3}));
  EXPECT_THAT(weights.keys(), ElementsAre("a", "b"));
  EXPECT_EQ(weights.total_bytes(), 14u);
  weights.set("a", tensor_of(DType::u8, {1}));
  EXPECT_EQ(weights.at("a").dtype, DType::u8);
  weights.rename("a", "c");
  EXPECT_EQ(weights.find("a"), nullptr);
  EXPECT_EQ(weights.at("c").dtype, DType::u8);
  weights.rename("c", "c");
  weights.erase("b");
  weights.erase("absent");
  EXPECT_THAT(weights.keys(), ElementsAre("c"));
}

TEST(WeightMapTest, NamesWhatIsWrong) {
  WeightMap weights;
  weights.set("model.norm.weight", tensor_of(DType::f32, {1}));
  weights.set("model.norm.bias", tensor_of(DType::f32, {1}));
  EXPECT_EQ(
      message_of([&] { weights.at("model.norms.weight"); }),
      "the checkpoint has no tensor \"model.norms.weight\": did you mean "
      "model.norm.weight or model.norm.bias?\n  check that all of the "
      "checkpoint's files are there");
  EXPECT_EQ(
      message_of(
          [&] { weights.rename("model.norm.bias", "model.norm.weight"); }),
      "cannot rename tensor \"model.norm.bias\": \"model.norm.weight\" exists "
      "already");
  EXPECT_THROW(weights.rename("absent", "b"), CheckpointError);
  EXPECT_EQ(weights.size(), 2u);
}

TEST(WeightTensorTest, OwnedTensorsAreAlignedAndCounted) {
  std::byte* data = nullptr;
  WeightTensor tensor = make_weight(DType::bf16, {3, 5}, &data);
  EXPECT_EQ(tensor.bytes, 30u);
  EXPECT_EQ(tensor.data, data);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 64, 0u);
  EXPECT_FALSE(tensor.mapped());
  EXPECT_EQ(make_weight(DType::f32, {0, 7}, &data).bytes, 0u);
  EXPECT_EQ(
      message_of(
          [&] { make_weight(DType::f32, {1 << 30, 1 << 30, 16}, &data); }),
      "cannot make a tensor: shape [1073741824, 1073741824, 16]");
  EXPECT_THROW(make_weight(DType::f32, {-1}, &data), CheckpointError);
}

TEST(WeightTensorTest, ReadsFloatsOfEveryType) {
  std::byte* data = nullptr;
  float out[2];
  WeightTensor half = make_weight(DType::f16, {2}, &data);
  const uint16_t halves[] = {0x3e00, 0xc100};  // 1.5, -2.5
  std::memcpy(data, halves, sizeof(halves));
  read_as_f32(half, out);
  EXPECT_EQ(out[0], 1.5f);
  EXPECT_EQ(out[1], -2.5f);
  read_as_f32(half, 1, 1, out);
  EXPECT_EQ(out[0], -2.5f);
  WeightTensor wide = make_weight(DType::f64, {2}, &data);
  const double doubles[] = {0.1, -1e300};
  std::memcpy(data, doubles, sizeof(doubles));
  read_as_f32(wide, out);
  EXPECT_EQ(out[0], 0.1f);
  EXPECT_EQ(out[1], -HUGE_VALF);
  EXPECT_EQ(
      message_of([&] { read_as_f32(tensor_of(DType::u32, {2}), out); }),
      "cannot read a tensor as numbers: it holds U32, a packed or integer "
      "type");
}

}  // namespace
}  // namespace mlxcel
