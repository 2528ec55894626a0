#include "engine/sampler.h"

#include "core/error.h"
#include "engine/random.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

namespace mlxcel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

int32_t draw(
    const SamplingParams& params,
    std::vector<float> logits,
    uint64_t index = 0,
    std::vector<int32_t> history = {0}) {
  return Sampler(params).sample(logits, history, index);
}

// How often each token is drawn over many indices.
std::map<int32_t, double> shares(
    const SamplingParams& params, const std::vector<float>& logits) {
  constexpr int kDraws = 20000;
  std::map<int32_t, double> out;
  Sampler sampler(params);
  std::vector<int32_t> history = {0};
  for (int i = 0; i < kDraws; ++i) {
    std::vector<float> copy = logits;
    out[sampler.sample(copy, history, uint64_t(i))] += 1.0 / kDraws;
  }
  return out;
}

// Logits of these probabilities.
std::vector<float> logits_of(const std::vector<double>& probabilities) {
  std::vector<float> out;
  for (double p : probabilities) {
    out.push_back(float(std::log(p)) + 3);
  }
  return out;
}

std::set<int32_t> tokens_of(const std::map<int32_t, double>& shares) {
  std::set<int32_t> out;
  for (const auto& [token, share] : shares) {
    out.insert(token);
  }
  return out;
}

TEST(Philox, GivesThePublishedVectors) {
  // Known answers of the Random123 distribution for philox4x32-10.
  EXPECT_THAT(
      philox4x32({0, 0, 0, 0}, {0, 0}),
      ElementsAre(0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u));
  EXPECT_THAT(
      philox4x32(
          {0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu},
          {0xffffffffu, 0xffffffffu}),
      ElementsAre(0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu));
  EXPECT_THAT(
      philox4x32(
          {0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u},
          {0xa4093822u, 0x299f31d0u}),
      ElementsAre(0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u));
}

TEST(Argmax, TakesTheFirstOfEqualMaxima) {
  for (size_t size : {1u, 15u, 16u, 17u, 1024u, 5000u}) {
    std::vector<float> values(size, -1.f);
    EXPECT_EQ(argmax(values), 0) << size;
    for (size_t at : {size - 1, size / 2}) {
      values[at] = 2;
      EXPECT_EQ(argmax(values), int32_t(at)) << size;
    }
  }
  EXPECT_EQ(argmax(std::vector<float>{-kInfinity, -3, -kInfinity}), 1);
}

TEST(ExpShifted, IsCloseToTheDoubleResult) {
  std::vector<float> x;
  for (int i = 0; i < 4001; ++i) {
    x.push_back(5 - float(i) * 0.031f);  // down to exp(-86.8)
  }
  std::vector<float> out(x.size());
  double sum = exp_shifted(x, 5, 0.7f, out.data());
  double expected_sum = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    double t = (double(x[i]) - 5) * double(0.7f);
    double expected = std::exp(t);
    EXPECT_NEAR(out[i] / expected, 1, 2e-7 + std::abs(t) * 0x1p-23) << x[i];
    expected_sum += expected;
  }
  EXPECT_NEAR(sum / expected_sum, 1, 1e-6);
  // Below that it stays where it is.
  for (float low : {-87.5f, -1e30f, -kInfinity}) {
    float result = 1;
    exp_shifted({&low, 1}, 0, 1, &result);
    EXPECT_NEAR(result / std::exp(-87.0), 1, 2e-7 + 87 * 0x1p-23) << low;
  }
}

TEST(Sampler, TemperatureZeroTakesTheBest) {
  EXPECT_EQ(draw({}, {1, 5, 5, 2}), 1);
}

TEST(Sampler, DrawsWithTheProbabilities) {
  SamplingParams params;
  params.temperature = 1;
  auto got = shares(params, logits_of({0.5, 0.3, 0.15, 0.05}));
  EXPECT_NEAR(got[0], 0.5, 0.012);
  EXPECT_NEAR(got[1], 0.3, 0.012);
  EXPECT_NEAR(got[2], 0.15, 0.01);
  EXPECT_NEAR(got[3], 0.05, 0.006);
}

TEST(Sampler, TemperatureSharpens) {
  SamplingParams params;
  params.temperature = 0.5f;  // probabilities squared
  auto got = shares(params, logits_of({0.6, 0.4}));
  EXPECT_NEAR(got[0], 0.36 / 0.52, 0.012);
}

TEST(Sampler, TheLeastTemperaturesTakeTheBest) {
  // 1 / 1e-39 is infinite in f32.
  for (float temperature : {1e-45f, 1e-39f, 1e-30f}) {
    EXPECT_EQ(
        tokens_of(shares({.temperature = temperature}, {1, 2, 3, 2.5})),
        std::set<int32_t>{2})
        << temperature;
  }
}

TEST(Sampler, SameSeedAndIndexGiveTheSameToken) {
  SamplingParams params;
  params.temperature = 1;
  params.seed = 7;
  std::vector<float> logits(1000);
  for (size_t i = 0; i < logits.size(); ++i) {
    logits[i] = std::sin(float(i));
  }
  std::set<int32_t> drawn;
  for (uint64_t i = 0; i < 50; ++i) {
    int32_t token = draw(params, logits, i);
    EXPECT_EQ(token, draw(params, logits, i));
    drawn.insert(token);
  }
  EXPECT_GT(drawn.size(), 40u);
  params.seed = 8;
  EXPECT_NE(
      draw(params, logits, 0), draw({.temperature = 1, .seed = 7}, logits, 0));
}

TEST(Sampler, TopKKeepsTheBestAndTheLowestIdsOfATie) {
  SamplingParams params;
  params.temperature = 1;
  params.top_k = 3;
  EXPECT_EQ(
      tokens_of(shares(params, {0, 1, 1, 1, 1, -2})),
      (std::set<int32_t>{1, 2, 3}));
  // Also when the candidates come from many stretches of the vocabulary.
  std::vector<float> many(10000, 0.f);
  for (size_t i = 0; i < many.size(); ++i) {
    many[i] = float(i % 977) * 1e-3f;
  }
  EXPECT_EQ(
      tokens_of(shares(params, many)), (std::set<int32_t>{976, 1953, 2930}));
}

TEST(Sampler, TopPKeepsTheSmallestSetThatReachesTheShare) {
  SamplingParams params;
  params.temperature = 1;
  params.top_p = 0.75f;
  std::vector<float> logits = logits_of({0.05, 0.5, 0.15, 0.3});
  auto got = shares(params, logits);
  EXPECT_EQ(tokens_of(got), (std::set<int32_t>{1, 3}));
  EXPECT_NEAR(got[1], 0.625, 0.012);
  params.top_p = 0.81f;
  EXPECT_EQ(tokens_of(shares(params, logits)), (std::set<int32_t>{1, 2, 3}));
  params.top_p = 1e-6f;
  EXPECT_EQ(tokens_of(shares(params, logits)), (std::set<int32_t>{1}));
}

TEST(Sampler, TopPAfterTopKTakesSharesOfWhatIsLeft) {
  SamplingParams params;
  params.temperature = 1;
  params.top_k = 2;
  params.top_p = 0.6f;  // of 0.8: 0.5 is 62.5%
  EXPECT_EQ(
      tokens_of(shares(params, logits_of({0.5, 0.3, 0.2}))),
      (std::set<int32_t>{0}));
}

TEST(Sampler, TopPDoesNotDependOnTheTemperature) {
  SamplingParams params;
  params.temperature = 50;
  params.top_p = 0.7f;
  EXPECT_EQ(
      tokens_of(shares(params, logits_of({0.5, 0.3, 0.15, 0.05}))),
      (std::set<int32_t>{0, 1}));
}

TEST(Sampler, MinPKeepsAShareOfTheBest) {
  SamplingParams params;
  params.temperature = 1;
  params.min_p = 0.29f;
  EXPECT_EQ(
      tokens_of(shares(params, logits_of({0.5, 0.3, 0.15, 0.05}))),
      (std::set<int32_t>{0, 1, 2}));
}

TEST(Sampler, XtcDropsAllButTheLeastLikelyOfTheLikely) {
  SamplingParams params;
  params.temperature = 1;
  params.xtc_probability = 1;
  params.xtc_threshold = 0.2f;
  EXPECT_EQ(
      tokens_of(shares(params, logits_of({0.5, 0.3, 0.15, 0.05}))),
      (std::set<int32_t>{1, 2, 3}));
}

TEST(Sampler, RepetitionPenaltyDividesOrMultiplies) {
  SamplingParams params;
  params.repetition_penalty = 2;
  EXPECT_EQ(draw(params, {4, 3}, 0, {0}), 1);      // 2 against 3
  EXPECT_EQ(draw(params, {-1, -1.5}, 0, {0}), 1);  // -2 against -1.5
  params.penalty_last_n = 1;
  EXPECT_EQ(draw(params, {4, 3}, 0, {0, 1}), 0);  // only token 1 is recent
}

TEST(Sampler, PresenceAndFrequencyPenaltiesSubtract) {
  SamplingParams params;
  params.presence_penalty = 1;
  EXPECT_EQ(draw(params, {4, 3.5f}, 0, {0, 0, 0}), 1);
  params.presence_penalty = 0;
  params.frequency_penalty = 0.3f;
  EXPECT_EQ(draw(params, {4, 3.5f}, 0, {0}), 0);     // 3.7
  EXPECT_EQ(draw(params, {4, 3.5f}, 0, {0, 0}), 1);  // 3.4
}

TEST(Sampler, DryPenalizesTheTokenThatContinuesARun) {
  SamplingParams params;
  params.dry_multiplier = 1;
  params.dry_base = 2;
  params.dry_allowed_length = 2;
  // The history ends in 1 2 3, which 4 followed before: length 3, penalty 2.
  std::vector<int32_t> history = {1, 2, 3, 4, 9, 1, 2, 3};
  std::vector<float> logits(10, 0.f);
  logits[4] = 5;
  logits[5] = 3.5f;
  EXPECT_EQ(draw(params, logits, 0, history), 5);
  logits[5] = 2.5f;
  EXPECT_EQ(draw(params, logits, 0, history), 4);
  // A run does not cross a breaker: 3 alone is shorter than allowed.
  logits[5] = 3.5f;
  params.dry_breakers = {2};
  EXPECT_EQ(draw(params, logits, 0, history), 4);
  // Nor does it reach past the tokens looked at.
  params.dry_breakers.clear();
  params.dry_last_n = 3;
  EXPECT_EQ(draw(params, logits, 0, history), 4);
}

TEST(Sampler, LogitBiasAddsAndBans) {
  SamplingParams params;
  params.logit_bias = {{0, -kInfinity}, {2, 1.5f}};
  EXPECT_EQ(draw(params, {9, 3, 2}), 2);
  params.temperature = 100;
  EXPECT_EQ(tokens_of(shares(params, {9, 3, 2})), (std::set<int32_t>{1, 2}));
  params.logit_bias = {{3, 1}};
  EXPECT_THAT(
      [&] { draw(params, {9, 3, 2}); },
      ThrowsMessage<ShapeError>(HasSubstr("token 3, vocabulary 3")));
}

TEST(Sampler, RefusesLogitsWithoutAFiniteMaximum) {
  EXPECT_THAT(
      [] { draw({}, {-kInfinity, -kInfinity}); },
      ThrowsMessage<UsageError>(HasSubstr(
          "no token can be chosen: biases and rules of the request exclude "
          "every token")));
  float nan = std::numeric_limits<float>::quiet_NaN();
  for (const std::vector<float>& logits :
       {std::vector<float>{nan, nan}, std::vector<float>{kInfinity, 1}}) {
    EXPECT_THAT(
        [&] { draw({}, logits); },
        ThrowsMessage<Error>(HasSubstr(
            "no token can be chosen: the model's logits hold no finite "
            "maximum")));
  }
}

TEST(SamplingParams, RefusalsNameTheParameter) {
  auto message = [](const SamplingParams& params) -> std::string {
    try {
      check(params);
      return "";
    } catch (const UsageError& error) {
      return error.what();
    }
  };
  EXPECT_EQ(message({}), "");
  EXPECT_EQ(
      message({.temperature = -1}),
      "invalid temperature: -1 is outside its range\n"
      "  give temperature a number from 0 up");
  EXPECT_THAT(
      message({.temperature = std::nanf("")}), HasSubstr("temperature"));
  EXPECT_THAT(message({.top_k = -1}), HasSubstr("top-k"));
  EXPECT_THAT(message({.top_p = 0}), HasSubstr("top-p"));
  EXPECT_THAT(message({.top_p = 1.1f}), HasSubstr("top-p"));
  EXPECT_THAT(message({.min_p = 2}), HasSubstr("min-p"));
  EXPECT_THAT(message({.repetition_penalty = 0}), HasSubstr("repetition"));
  EXPECT_THAT(message({.dry_base = 0.5f}), HasSubstr("dry-base"));
}

}  // namespace
}  // namespace mlxcel
