#include "ops/matrix_source.h"

#include "core/error.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "support/fixtures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mlxcel {
namespace {

Config config_of(const std::string& text) {
  return Config(parse_json(text, "config.json"), "config.json");
}

WeightTensor tensor(DType dtype, Shape shape) {
  std::byte* data = nullptr;
  return make_weight(dtype, std::move(shape), &data);
}

// Weights of one matrix "m", packed with `bits` bits in groups of `group`.
WeightMap packed(int64_t out, int64_t in, int bits, int group) {
  WeightMap weights;
  weights.set("m.weight", tensor(DType::u32, {out, in * bits / 32}));
  weights.set("m.scales", tensor(DType::f16, {out, in / group}));
  weights.set("m.biases", tensor(DType::f16, {out, in / group}));
  return weights;
}

std::string refusal(
    const WeightMap& weights,
    const std::string& config = "{}",
    int64_t out = 8,
    int64_t in = 128) {
  try {
    Config parsed = config_of(config);
    MatrixSource source(weights, parsed);
    source.matrix("m", out, in);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

constexpr const char* kSupported =
    "\n  supported: affine with 4 or 8 bits in groups of 32, 64 or 128";
constexpr const char* kRefetch =
    "\n  fetch the checkpoint again, or convert it again from its original";
constexpr const char* kCheckConfig =
    "\n  check that config.json belongs to these weights";

TEST(MatrixSourceTest, ReadsEverySupportedFormatFromTheShapes) {
  for (int bits : {4, 8}) {
    for (int group : {32, 64, 128}) {
      WeightMap weights = packed(8, 256, bits, group);
      // config.json may be silent or wrong: the shapes decide.
      for (const char* text :
           {"{}",
            R"({"quantization": {"bits": 4, "group_size": 64}})",
            R"({"quantization": {"bits": 3, "group_size": 16}})"}) {
        Config config = config_of(text);
        MatrixSource source(weights, config);
        MatrixWeight matrix = source.matrix("m", 8, 256);
        EXPECT_EQ(matrix.quant, (Quant{QuantMode::affine, bits, group}));
        EXPECT_EQ(matrix.out, 8);
        EXPECT_EQ(matrix.in, 256);
        EXPECT_EQ(matrix.name, "m");
        EXPECT_TRUE(source.unclaimed().empty());
      }
    }
  }
}

TEST(MatrixSourceTest, ReadsPlainMatricesBesidePackedOnes) {
  WeightMap weights;
  weights.set("m.weight", tensor(DType::bf16, {8, 128}));
  weights.set("stray.weight", tensor(DType::bf16, {1}));
  Config config =
      config_of(R"({"quantization": {"bits": 4, "group_size": 64}})");
  MatrixSource source(weights, config);
  EXPECT_FALSE(source.matrix("m", 8, 128).quant.packed());
  EXPECT_EQ(source.matrix("m", 0, 128).out, 8);
  EXPECT_THAT(source.unclaimed(), ::testing::ElementsAre("stray.weight"));
}

TEST(MatrixSourceTest, StacksAreRowsOfOneMatrix) {
  WeightMap weights;
  weights.set("m.weight", tensor(DType::u32, {3, 8, 16}));
  weights.set("m.scales", tensor(DType::f16, {3, 8, 2}));
  weights.set("m.biases", tensor(DType::f16, {3, 8, 2}));
  weights.set("p.weight", tensor(DType::f32, {3, 8, 20}));
  Config config = config_of("{}");
  MatrixSource source(weights, config);
  MatrixWeight all = source.stack("m", 3, 8, 128);
  EXPECT_EQ(all.out, 24);
  EXPECT_EQ(all.quant, (Quant{QuantMode::affine, 4, 64}));
  MatrixWeight second = slice_rows(all, 8, 8);
  EXPECT_EQ(second.weight.shape, (Shape{8, 16}));
  EXPECT_EQ(
      second.weight.data, weights.at("m.weight").data + size_t(8) * 16 * 4);
  EXPECT_EQ(second.biases.data, weights.at("m.biases").data + 8 * 2 * 2);
  EXPECT_EQ(source.stack("p", 3, 8, 20).weight.shape, (Shape{24, 20}));
  EXPECT_TRUE(source.unclaimed().empty());
  try {
    source.stack("p", 4, 8, 20);
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_EQ(
        std::string(error.what()),
        cat("tensor \"p.weight\" has the wrong shape: it is F32 [3, 8, 20], "
            "the model needs 4 experts with 8 rows of 20 weights",
            kCheckConfig));
  }
}

TEST(MatrixSourceTest, RefusesMissingParts) {
  WeightMap weights = packed(8, 128, 4, 64);
  weights.erase("m.scales");
  EXPECT_EQ(
      refusal(weights),
      cat("tensor \"m.weight\" has no \"m.scales\": its U32 [8, 16] cannot be "
          "read without them",
          kRefetch));
  weights = packed(8, 128, 4, 64);
  weights.erase("m.biases");
  EXPECT_EQ(
      refusal(weights),
      cat("tensor \"m.weight\" has no \"m.biases\": a weight packed as affine "
          "needs scales and biases: weight U32 [8, 16], scales F16 [8, 2], no "
          "biases, and the model needs 128 weights a row",
          kRefetch));
  weights.erase("m.weight");
  EXPECT_EQ(
      refusal(weights),
      "the checkpoint has no tensor \"m.weight\"\n  "
      "check that all of the checkpoint's files are there");
}

TEST(MatrixSourceTest, RefusesShapesThatDoNotFit) {
  EXPECT_EQ(
      refusal(packed(9, 128, 4, 64)),
      cat("tensor \"m.weight\" has the wrong shape: it is U32 [9, 16], the "
          "model needs 8 rows of 128 weights",
          kCheckConfig));
  WeightMap cut = packed(8, 128, 4, 64);
  cut.set("m.weight", tensor(DType::u32, {8, 15}));
  EXPECT_EQ(
      refusal(cut),
      "tensor \"m.weight\" and its scales do not fit together: weight U32 [8, "
      "15], scales F16 [8, 2], biases F16 [8, 2], and the model needs 128 "
      "weights a row\n  check config.json's dimensions, or fetch the "
      "checkpoint "
      "again");
  WeightMap rows = packed(8, 128, 4, 64);
  rows.set("m.scales", tensor(DType::f16, {7, 2}));
  EXPECT_THAT(refusal(rows), ::testing::HasSubstr("do not fit together"));
  WeightMap types = packed(8, 128, 4, 64);
  types.set("m.biases", tensor(DType::f32, {8, 2}));
  EXPECT_THAT(refusal(types), ::testing::HasSubstr("do not fit together"));
  WeightMap three = packed(8, 128, 4, 64);
  three.set("m.scales", tensor(DType::f16, {8, 3}));
  EXPECT_THAT(refusal(three), ::testing::HasSubstr("do not fit together"));
  WeightMap empty = packed(8, 128, 4, 64);
  empty.set("m.scales", tensor(DType::f16, {8, 0}));
  EXPECT_THAT(refusal(empty), ::testing::HasSubstr("do not fit together"));
  WeightMap plain;
  plain.set("m.weight", tensor(DType::f32, {8, 64}));
  EXPECT_EQ(
      refusal(plain),
      cat("tensor \"m.weight\" has the wrong shape: it is F32 [8, 64], the "
          "model needs [8, 128]",
          kCheckConfig));
}

TEST(MatrixSourceTest, RefusesOtherWidthsAndGroups) {
  EXPECT_EQ(
      refusal(packed(8, 128, 7, 64)),
      cat("tensor \"m.weight\" is packed with 7 bits in groups of 64, which is "
          "not supported: weight U32 [8, 28], scales F16 [8, 2], biases F16 "
          "[8, "
          "2], and the model needs 128 weights a row",
          kSupported));
  EXPECT_THAT(
      refusal(packed(8, 128, 4, 16)),
      ::testing::HasSubstr("4 bits in groups of 16, which is not supported"));
}

TEST(MatrixSourceTest, RefusesFormatsByName) {
  WeightMap weights = packed(8, 128, 4, 64);
  EXPECT_EQ(
      refusal(weights, R"({"quantization": {"mode": "mxfp4"}})"),
      cat("config.json: quantization mode \"mxfp4\" is not supported: found in "
          "\"quantization\"",
          kSupported));
  EXPECT_EQ(
      refusal(weights, R"({"quantization": {"m": {"mode": "int4x"}}})"),
      cat("config.json: quantization mode \"int4x\" is not known: found in "
          "\"quantization.m\"",
          kSupported));
  for (const char* method : {"awq", "gptq", "hqq", "fp8", "modelopt"}) {
    EXPECT_EQ(
        refusal(
            weights,
            cat(R"({"quantization_config": {"quant_method": ")",
                method,
                "\"}}")),
        cat("config.json: quantization method \"",
            method,
            "\" is not supported: found in "
            "\"quantization_config.quant_method\"",
            kSupported,
            ", as mlx-community checkpoints have it; or use the unquantized "
            "model"));
  }
  EXPECT_EQ(
      refusal(weights, R"({"quantization": {"bits": 0}})"),
      "config.json: \"quantization.bits\" is 0: expected a positive number");
  EXPECT_EQ(
      refusal(weights, R"({"quantization": {"a.b": 4}})"),
      "config.json: \"quantization.a.b\" has the wrong type: expected an "
      "object, "
      "true or false, found number\n  correct the value in the file");
}

TEST(MatrixSourceTest, EntriesOfLayersAreRead) {
  Config config = config_of(
      R"({"quantization_config": {"bits": 4, "group_size": 64,)"
      R"( "a.q": {"bits": 8, "group_size": 32}, "a.k": true, "a.v": false}})");
  QuantConfig quant(config);
  EXPECT_TRUE(quant.stated());
  EXPECT_EQ(quant.of("a.q"), (Quant{QuantMode::affine, 8, 32}));
  EXPECT_EQ(quant.of("a.k"), (Quant{QuantMode::affine, 4, 64}));
  EXPECT_EQ(quant.of("other"), (Quant{QuantMode::affine, 4, 64}));
  EXPECT_TRUE(quant.excludes("a.v"));
  EXPECT_FALSE(quant.excludes("a.k"));
  EXPECT_EQ(
      refusal(
          packed(8, 128, 4, 64),
          R"({"quantization": {"bits": 4, "m": false}})"),
      cat("tensor \"m.weight\" has scales: config.json says that this layer is "
          "not quantized",
          kCheckConfig));
}

TEST(MatrixSourceTest, ChecksFloatTensors) {
  WeightMap weights;
  weights.set("norm.weight", tensor(DType::f32, {4}));
  weights.set("ids", tensor(DType::i32, {4}));
  Config config = config_of("{}");
  MatrixSource source(weights, config);
  EXPECT_EQ(source.tensor("norm.weight", {4}).shape, Shape{4});
  EXPECT_FALSE(source.find_tensor("absent", {4}).has_value());
  auto message = [&](const char* key, const Shape& shape) {
    try {
      source.tensor(key, shape);
    } catch (const CheckpointError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(
      message("norm.weight", {5}),
      cat("tensor \"norm.weight\" has the wrong shape: it is [4], the model "
          "needs [5]",
          kCheckConfig));
  EXPECT_EQ(
      message("ids", {4}),
      cat("tensor \"ids\" does not hold numbers: it is I32 [4], expected "
          "floats "
          "[4]",
          kRefetch));
}

TEST(SliceRowsTest, ViewsAllParts) {
  WeightMap weights = packed(8, 128, 4, 64);
  Config config = config_of("{}");
  MatrixSource source(weights, config);
  MatrixWeight whole = source.matrix("m", 8, 128);
  MatrixWeight part = slice_rows(whole, 2, 3);
  EXPECT_EQ(part.out, 3);
  EXPECT_EQ(part.weight.shape, (Shape{3, 16}));
  EXPECT_EQ(part.weight.data, whole.weight.data + 2 * 16 * 4);
  EXPECT_EQ(part.weight.bytes, size_t(3 * 16 * 4));
  EXPECT_EQ(part.scales.data, whole.scales.data + 2 * 2 * 2);
  EXPECT_EQ(part.biases.data, whole.biases.data + 2 * 2 * 2);
  EXPECT_EQ(part.weight.owner, whole.weight.owner);
  EXPECT_THROW(slice_rows(whole, 6, 3), ShapeError);
  EXPECT_THROW(slice_rows(whole, -1, 3), ShapeError);
}

}  // namespace
}  // namespace mlxcel
