#include "loading/sanitize_weights.h"

#include "core/error.h"
#include "loading/config_file.h"
#include "models/registry.h"
#include "support/log_capture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

namespace mlxcel {
namespace {

using ::testing::ElementsAre;
using testing::LogCapture;

NameMap names_of(bool tied) {
  std::string text = cat(
      R"({"model_type": "llama", "hidden_size": 8, "vocab_size": 4,)"
      R"( "intermediate_size": 8, "num_hidden_layers": 1,)"
      R"( "num_attention_heads": 2, "rms_norm_eps": 1e-5, "hidden_act": "silu",)"
      R"( "tie_word_embeddings": )",
      tied,
      "}");
  Config config(sanitize_config(text, "config.json"), "config.json");
  const Family& family = *find_by_model_type("llama");
  return NameMap(family.names, decoder_spec(family, config));
}

WeightTensor filled(DType dtype, Shape shape, int value) {
  std::byte* data = nullptr;
  WeightTensor tensor = make_weight(dtype, std::move(shape), &data);
  std::memset(data, value, tensor.bytes);
  return tensor;
}

TEST(SanitizeWeightsTest, RestoresATiedHeadWithoutCopying) {
  LogCapture log;
  NameMap names = names_of(true);
  WeightMap weights;
  weights.set("model.embed_tokens.weight", filled(DType::u32, {4, 1}, 1));
  weights.set("model.embed_tokens.scales", filled(DType::f16, {4, 1}, 2));
  weights.set("model.embed_tokens.biases", filled(DType::f16, {4, 1}, 3));
  sanitize_weights(Config(), names, weights);
  for (const char* part : {"weight", "scales", "biases"}) {
    EXPECT_EQ(
        weights.at(cat("lm_head.", part)).data,
        weights.at(cat("model.embed_tokens.", part)).data);
  }
  EXPECT_THAT(log.warnings, ElementsAre());
}

TEST(SanitizeWeightsTest, LeavesOtherHeadsAlone) {
  LogCapture log;
  WeightMap weights;
  weights.set("model.embed_tokens.weight", filled(DType::f32, {4, 8}, 1));
  sanitize_weights(Config(), names_of(false), weights);
  EXPECT_FALSE(weights.contains("lm_head.weight"));
  // An equal copy is no reason to warn; another content is.
  weights.set("lm_head.weight", filled(DType::f32, {4, 8}, 1));
  sanitize_weights(Config(), names_of(true), weights);
  EXPECT_THAT(log.warnings, ElementsAre());
  weights.set("lm_head.weight", filled(DType::f32, {4, 8}, 2));
  const std::byte* stored = weights.at("lm_head.weight").data;
  sanitize_weights(Config(), names_of(true), weights);
  EXPECT_EQ(log.warnings.size(), 1u);
  EXPECT_EQ(weights.at("lm_head.weight").data, stored);
}

TEST(SanitizeWeightsTest, RefusesPartsWithoutTheirWhole) {
  auto message = [](const WeightMap& weights) {
    try {
      check_formats(weights, Config());
    } catch (const CheckpointError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  WeightTensor scales = filled(DType::f16, {4, 1}, 0);
  scales.file = "a.safetensors";
  WeightMap weights;
  weights.set("m.scales", scales);
  EXPECT_EQ(
      message(weights),
      "tensor \"m.scales\" in a.safetensors has no weight: \"m.weight\" is not "
      "in the checkpoint\n  fetch the checkpoint again, or convert it again "
      "from its "
      "original");
  weights.erase("m.scales");
  WeightTensor codes = filled(DType::f8_e4m3, {4, 2}, 0);
  codes.file = "a.safetensors";
  weights.set("m.weight", codes);
  EXPECT_EQ(
      message(weights),
      "tensor \"m.weight\" in a.safetensors has no scales: its F8_E4M3 [4, 2] "
      "cannot be read without \"m.weight_scale_inv\"\n  fetch the checkpoint "
      "again, or convert it again from its original");
  WeightTensor words = filled(DType::u32, {4, 2}, 0);
  words.file = "a.safetensors";
  weights.set("m.weight", words);
  EXPECT_EQ(
      message(weights),
      "tensor \"m.weight\" in a.safetensors has no \"m.scales\": its U32 [4, "
      "2] "
      "cannot be read without them\n  fetch the checkpoint again, or convert "
      "it "
      "again from its original");
}

TEST(SanitizeWeightsTest, NarrowsDoubles) {
  WeightMap weights;
  std::byte* data = nullptr;
  weights.set("a", make_weight(DType::f64, {2}, &data));
  const double values[] = {1.5, -3e-50};
  std::memcpy(data, values, sizeof(values));
  sanitize_weights(Config(), names_of(false), weights);
  EXPECT_EQ(weights.at("a").dtype, DType::f32);
  float out[2];
  read_as_f32(weights.at("a"), out);
  EXPECT_EQ(out[0], 1.5f);
  EXPECT_EQ(out[1], 0.f);
}

TEST(SanitizeWeightsTest, ActivationsFollowTheEmbedding) {
  NameMap names = names_of(false);
  WeightMap weights;
  EXPECT_EQ(activation_dtype_of(names, weights), DType::f32);
  weights.set("model.embed_tokens.weight", filled(DType::bf16, {4, 8}, 0));
  EXPECT_EQ(activation_dtype_of(names, weights), DType::bf16);
  weights.set("model.embed_tokens.weight", filled(DType::u32, {4, 1}, 0));
  weights.set("model.embed_tokens.scales", filled(DType::f16, {4, 1}, 0));
  EXPECT_EQ(activation_dtype_of(names, weights), DType::f16);
}

}  // namespace
}  // namespace mlxcel
