// Rotary tables against values worked out in double precision from the papers'
// formulas, apart from the code under test.
#include "models/rope.h"

#include "core/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mlxcel {
namespace {

using nlohmann::json;

std::shared_ptr<const RopeTable> table_of(json config, int head_dim = 16) {
  return rope_table(Config(std::move(config), "config.json"), head_dim);
}

void expect_frequencies(
    const std::vector<float>& actual, const std::vector<float>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i], 1e-6f * expected[i]) << i;
  }
}

const std::vector<float> kPlain7000 = {
    1.f,
    0.330645598f,
    0.109326511f,
    0.0361483297f,
    0.0119522861f,
    0.00395197078f,
    0.00130670174f,
    0.000432055179f};

std::string refusal(json config, int head_dim = 16) {
  try {
    table_of(std::move(config), head_dim);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Rope, PlainInBothForms) {
  for (const json& config : std::vector<json>{
           {{"rope_theta", 7000.0}},
           {{"rope_theta", 7000}, {"rope_scaling", nullptr}},
           {{"rope_parameters",
             {{"rope_type", "default"}, {"rope_theta", 7000.0}}}},
           {{"rope_parameters",
             {{"full_attention",
               {{"rope_type", "default"}, {"rope_theta", 7000.0}}},
              {"sliding_attention", {{"rope_theta", 10.0}}}}}}}) {
    auto table = table_of(config);
    EXPECT_EQ(table->dims, 16);
    EXPECT_EQ(table->scale, 1);
    EXPECT_EQ(table->switch_length, 0);
    EXPECT_FALSE(table->interleaved);
    expect_frequencies(table->inv_freq, kPlain7000);
  }
}

TEST(Rope, ThetaDefaultsToTheFamilys) {
  auto table = rope_table(Config(json::object(), "c"), 4, {.theta = 400});
  expect_frequencies(table->inv_freq, {1.f, 0.05f});
}

TEST(Rope, PartialRotationTurnsTheFirstDimensions) {
  auto table =
      table_of({{"rope_theta", 7000.0}, {"partial_rotary_factor", 0.5}}, 32);
  EXPECT_EQ(table->dims, 16);
  expect_frequencies(table->inv_freq, kPlain7000);
}

TEST(Rope, LinearUnderItsOlderName) {
  auto table = table_of(
      {{"rope_theta", 7000.0},
       {"rope_scaling", {{"type", "linear"}, {"factor", 4.0}}}});
  std::vector<float> expected = kPlain7000;
  for (float& value : expected) {
    value /= 4;
  }
  expect_frequencies(table->inv_freq, expected);
}

TEST(Rope, Llama3KeepsFastAndStretchesSlowFrequencies) {
  auto table = table_of(
      {{"rope_theta", 50000.0},
       {"rope_scaling",
        {{"rope_type", "llama3"},
         {"factor", 8.0},
         {"low_freq_factor", 1.0},
         {"high_freq_factor", 4.0},
         {"original_max_position_embeddings", 32}}}});
  expect_frequencies(
      table->inv_freq,
      {1.f,
       0.0562377475f,
       0.00835925381f,
       0.00216170418f,
       0.000559016994f,
       0.000144561871f,
       3.73837195e-05f,
       9.66743497e-06f});
}

json yarn(json extra) {
  json scaling = {
      {"rope_type", "yarn"},
      {"factor", 4.0},
      {"original_max_position_embeddings", 64},
      {"beta_fast", 2.0},
      {"beta_slow", 0.25}};
  scaling.update(extra);
  return {{"rope_theta", 1000.0}, {"rope_scaling", scaling}};
}

TEST(Rope, YarnRampsAndScalesTheAttention) {
  auto table = table_of(yarn(json::object()));
  expect_frequencies(
      table->inv_freq,
      {1.f,
       0.421696503f,
       0.144485202f,
       0.0468683881f,
       0.0138349648f,
       0.00333380358f,
       0.00140585331f,
       0.000592843426f});
  EXPECT_FLOAT_EQ(table->scale, 1.138629436f);
}

TEST(Rope, YarnWithoutTruncation) {
  auto table = table_of(yarn({{"truncate", false}}));
  expect_frequencies(
      table->inv_freq,
      {1.f,
       0.421696503f,
       0.171473162f,
       0.0489556204f,
       0.0107961087f,
       0.00333380358f,
       0.00140585331f,
       0.000592843426f});
}

TEST(Rope, YarnScales) {
  EXPECT_FLOAT_EQ(
      table_of(
          yarn({{"factor", 40.0}, {"mscale", 0.707}, {"mscale_all_dim", 1}}))
          ->scale,
      0.9210423553f);
  EXPECT_FLOAT_EQ(table_of(yarn({{"attention_factor", 1.5}}))->scale, 1.5f);
  EXPECT_FLOAT_EQ(table_of(yarn({{"factor", 0.5}}))->scale, 1.f);
}

TEST(Rope, LongropeHasTwoTables) {
  for (const char* type : {"longrope", "su", "yarn"}) {
    auto table = table_of(
        {{"rope_theta", 7000.0},
         {"max_position_embeddings", 128},
         {"original_max_position_embeddings", 16},
         {"rope_scaling",
          {{"type", type},
           {"short_factor", {1.0, 1.1, 1.3, 1.6, 2.0, 2.5, 3.0, 3.5}},
           {"long_factor", {1.2, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 9.0}}}}});
    EXPECT_EQ(table->switch_length, 16);
    EXPECT_FLOAT_EQ(table->scale, 1.3228756555f);
    EXPECT_FLOAT_EQ(table->long_scale, 1.3228756555f);
    expect_frequencies(
        table->inv_freq,
        {1.f,
         0.300586907f,
         0.0840973165f,
         0.0225927061f,
         0.00597614305f,
         0.00158078831f,
         0.000435567247f,
         0.000123444337f});
    expect_frequencies(
        table->long_inv_freq,
        {0.833333333f,
         0.220430399f,
         0.0546632557f,
         0.0120494432f,
         0.00298807152f,
         0.000658661797f,
         0.000163337718f,
         4.8006131e-05f});
  }
}

// NanoChat turns the other way round, scaled or not.
TEST(Rope, BackwardsTurnsEveryTableTheOtherWay) {
  for (const json& scaling : std::vector<json>{
           nullptr,
           {{"rope_type", "linear"}, {"factor", 2.0}},
           {{"rope_type", "longrope"},
            {"short_factor", {1.0, 1.1, 1.3, 1.6}},
            {"long_factor", {1.2, 1.5, 2.0, 3.0}}}}) {
    Config config(
        {{"rope_theta", 7000.0},
         {"max_position_embeddings", 128},
         {"original_max_position_embeddings", 16},
         {"rope_scaling", scaling}},
        "config.json");
    auto forwards = rope_table(config, 8);
    auto table = rope_table(config, 8, {.backwards = true});
    for (auto frequencies : {&RopeTable::inv_freq, &RopeTable::long_inv_freq}) {
      ASSERT_EQ(
          ((*table).*frequencies).size(), ((*forwards).*frequencies).size());
      for (size_t i = 0; i < ((*table).*frequencies).size(); ++i) {
        EXPECT_EQ(((*table).*frequencies)[i], -((*forwards).*frequencies)[i])
            << scaling << i;
      }
    }
  }
}

TEST(Rope, RefusesWhatItCannotFollow) {
  EXPECT_THAT(
      refusal({{"rope_scaling", {{"rope_type", "spiral"}}}}),
      ::testing::HasSubstr("rope type spiral is not supported"));
  EXPECT_THAT(
      refusal(
          {{"rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}}},
           {"rope_parameters", {{"rope_type", "linear"}, {"factor", 4.0}}}}),
      ::testing::HasSubstr("both given and differ"));
  EXPECT_THAT(
      refusal({{"partial_rotary_factor", 0.3}}, 10),
      ::testing::HasSubstr("rotates 3 dimensions"));
  EXPECT_THAT(
      refusal({{"partial_rotary_factor", 1e20}}),
      ::testing::HasSubstr("partial_rotary_factor 1e+20 of head_dim 16"));
  EXPECT_THAT(
      refusal({{"rope_theta", 1e-80}}),
      ::testing::HasSubstr("its frequencies or its scale are not finite"));
  // The attention scale divides by the logarithm of the original length.
  EXPECT_THAT(
      refusal(
          {{"max_position_embeddings", 64},
           {"rope_scaling",
            {{"type", "longrope"},
             {"original_max_position_embeddings", 1},
             {"short_factor", std::vector<double>(8, 1)},
             {"long_factor", std::vector<double>(8, 1)}}}}),
      ::testing::HasSubstr("its frequencies or its scale are not finite"));
  EXPECT_THAT(
      refusal({{"rope_theta", -1.0}}),
      ::testing::HasSubstr("rope_theta is -1"));
  EXPECT_THAT(
      refusal({{"rope_scaling", {{"type", "linear"}, {"factor", 0.0}}}}),
      ::testing::HasSubstr("factor is 0"));
  EXPECT_THAT(
      refusal(
          {{"max_position_embeddings", 64},
           {"rope_scaling",
            {{"type", "longrope"},
             {"factor", 2.0},
             {"short_factor", {1.0}},
             {"long_factor", {1.0}}}}}),
      ::testing::HasSubstr("short_factor has 1 entries"));
}

}  // namespace
}  // namespace mlxcel
