#include "engine/perplexity.h"

#include "engine/fake_model.h"
#include "io/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>

namespace mlxcel {
namespace {

TEST(Perplexity, LikelihoodAndDivergenceOfSmallDistributions) {
  std::vector<float> even = {2, 2}, skewed = {float(std::log(3.0)), 0};
  EXPECT_NEAR(negative_log_likelihood(even, 1), std::log(2.0), 1e-7);
  EXPECT_NEAR(negative_log_likelihood(skewed, 0), -std::log(0.75), 1e-7);
  Divergence d = divergence(even, skewed);
  EXPECT_NEAR(
      d.kl, 0.5 * std::log(0.5 / 0.75) + 0.5 * std::log(0.5 / 0.25), 1e-7);
  EXPECT_NEAR(divergence(skewed, skewed).kl, 0, 1e-12);
  EXPECT_FALSE(divergence(std::vector<float>{0, 1}, skewed).same_top);
}

TEST(Perplexity, VisitsEachWindowWithItsOwnPast) {
  testing::FakeModel model;
  testing::FakeBackend backend;
  Engine engine(model, backend, {.prefill_chunk = 3});
  std::vector<int32_t> tokens = {3, 1, 4, 1, 5, 9, 2, 6, 5};
  std::vector<int32_t> visited;
  for_each_prediction(
      engine, tokens, 4, {}, [&](int64_t i, std::span<const float> logits) {
        visited.push_back(int32_t(i));
        std::vector<int32_t> past(
            tokens.begin() + i / 4 * 4, tokens.begin() + i);
        EXPECT_THAT(
            logits, ::testing::ElementsAreArray(testing::fake_logits(past)));
      });
  EXPECT_THAT(visited, ::testing::ElementsAre(1, 2, 3, 5, 6, 7));
  EXPECT_EQ(visited, predicted_positions(9, 4));
  EXPECT_EQ(engine.blocks().used(), 0);
}

TEST(Perplexity, WritesPredictionsAsSafetensors) {
  namespace fs = std::filesystem;
  fs::path file = fs::path(::testing::TempDir()) / "predictions.safetensors";
  std::vector<int32_t> tokens = {7, 8, 9};
  {
    LogitsWriter unfinished(file, tokens, {1, 2}, 2);
  }
  EXPECT_FALSE(fs::exists(file));
  LogitsWriter writer(file, tokens, {1, 2}, 2);
  writer.add(std::vector<float>{1, 2});
  EXPECT_THAT(
      [&] { writer.finish(); },
      ::testing::ThrowsMessage<Error>(::testing::HasSubstr(
          "incomplete predictions for " + file.string() +
          ": 1 rows are missing")));
  writer.add(std::vector<float>{3, 4});
  writer.finish();
  WeightMap read = read_safetensors(file).tensors;
  EXPECT_EQ(read.at("tokens").shape, Shape{3});
  EXPECT_EQ(read.at("logits").shape, (Shape{2, 2}));
  float values[4];
  std::memcpy(values, read.at("logits").data, sizeof values);
  EXPECT_THAT(values, ::testing::ElementsAre(1, 2, 3, 4));
  fs::remove(file);
}

}  // namespace
}  // namespace mlxcel
