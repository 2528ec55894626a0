#include "adapters/config.h"

#include "core/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mlxcel {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

double factor(const std::string& text) {
  return parse_adapter_config(text, "adapter_config.json").factor();
}

TEST(AdapterConfig, AlphaOverRankBeatsScale) {
  EXPECT_EQ(
      factor(R"({"lora_parameters": {"rank": 16, "lora_alpha": 32,
                                     "scale": 7}})"),
      2.0);
  EXPECT_EQ(
      factor(R"({"lora_parameters": {"rank": 8, "lora_alpha": 0}})"), 0.0);
}

TEST(AdapterConfig, DefaultsAreRank8AndScale20) {
  EXPECT_EQ(factor("{}"), 20.0);
  EXPECT_EQ(factor(R"({"lora_parameters": {"rank": 4}})"), 20.0);
  EXPECT_EQ(
      factor(R"({"lora_parameters": {"rank": 4}, "rank": 9, "scale": 3})"),
      20.0);
  EXPECT_EQ(factor(R"({"use_dora": false})"), 20.0);
  EXPECT_EQ(factor(R"({"lora_parameters": {"lora_alpha": 4}})"), 0.5);
  EXPECT_EQ(
      factor(R"({"lora_parameters": {"scale": 3, "lora_alpha": null}})"), 3.0);
}

TEST(AdapterConfig, RefusesFactorsBeyondF32AndHostileJson) {
  const std::pair<std::string, const char*> cases[] = {
      {R"({"lora_parameters": {"scale": 1e39}})",
       "its scale comes to 1e+39, beyond the range of f32"},
      {R"({"lora_parameters": {"rank": 1, "lora_alpha": -1e300}})",
       "its scale comes to -1e+300, beyond the range of f32"},
      {R"({"lora_parameters": {"scale": 1, "scale": 2}})",
       "key \"scale\" appears twice in one object"},
      {std::string(100000, '[') + std::string(100000, ']'),
       "nested deeper than 64 levels"},
  };
  for (const auto& [text, part] : cases) {
    EXPECT_THAT(
        [&] { factor(text); }, ThrowsMessage<AdapterError>(HasSubstr(part)));
  }
}

struct Refusal {
  const char* text;
  const char* message;
};

class AdapterConfigRefusal : public ::testing::TestWithParam<Refusal> {};

TEST_P(AdapterConfigRefusal, SaysWhatWhyAndHow) {
  try {
    parse_adapter_config(GetParam().text, "f.json");
    FAIL() << "accepted " << GetParam().text;
  } catch (const AdapterError& error) {
    EXPECT_STREQ(error.what(), GetParam().message);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All,
    AdapterConfigRefusal,
    ::testing::Values(
        Refusal{
            R"({"fine_tune_type": "dora"})",
            "DoRA adapters are not supported: f.json says fine_tune_type "
            "\"dora\"; its low-rank pair without the magnitudes is neither the "
            "base model nor the fine-tune\n  fuse it into its base checkpoint "
            "with the tool that trained it, and load the result as a model"},
        Refusal{
            R"({"lora_parameters": {"rank": 4}, "use_dora": true})",
            "DoRA adapters are not supported: f.json says use_dora; its "
            "low-rank pair without the magnitudes is neither the base model "
            "nor the fine-tune\n  fuse it into its base checkpoint with the "
            "tool that trained it, and load the result as a model"},
        Refusal{
            R"({"rank": 4, "scale": 2.0})",
            "adapter config f.json has a field in the wrong place: rank is at "
            "the top level, where it would not be read\n  write it as "
            "{\"fine_tune_type\": \"lora\", \"lora_parameters\": {\"rank\": "
            "8, \"scale\": 20.0}}"},
        Refusal{
            R"({"rank": 4, "scale": 2.0, "lora_parameters": null})",
            "adapter config f.json has a field in the wrong place: rank is at "
            "the top level, where it would not be read\n  write it as "
            "{\"fine_tune_type\": \"lora\", \"lora_parameters\": {\"rank\": "
            "8, \"scale\": 20.0}}"},
        Refusal{
            R"({"fine_tune_type": "full"})",
            "fine_tune_type \"full\" is not supported: f.json describes no "
            "low-rank adapter\n  a full fine-tune is a model of its own: save "
            "it as a checkpoint and load it with --model"},
        Refusal{
            R"({"fine_tune_type": "ia3"})",
            "fine_tune_type \"ia3\" is not supported: f.json describes no "
            "low-rank adapter\n  mlxcel applies fine_tune_type \"lora\""},
        Refusal{
            R"({"fine_tune_type": 3})",
            "adapter config f.json has an unusable value: fine_tune_type is 3, "
            "and a string is needed\n  mlxcel applies fine_tune_type \"lora\""},
        Refusal{
            R"({"lora_parameters": {"rank": 0}})",
            "adapter config f.json has an unusable value: lora_parameters.rank "
            "is 0, and a whole number of at least 1 is needed\n  set rank to "
            "the inner dimension of the lora_a and lora_b tensors"},
        Refusal{
            R"({"lora_parameters": {"rank": 2.5}})",
            "adapter config f.json has an unusable value: lora_parameters.rank "
            "is 2.5, and a whole number of at least 1 is needed\n  set rank to "
            "the inner dimension of the lora_a and lora_b tensors"},
        Refusal{
            R"({"lora_parameters": {"rank": "4"}})",
            "adapter config f.json has an unusable value: lora_parameters.rank "
            "is \"4\", and a finite number is needed\n  correct rank, or leave "
            "it out to get the default"},
        Refusal{
            R"({"lora_parameters": {"scale": true}})",
            "adapter config f.json has an unusable value: "
            "lora_parameters.scale is true, and a finite number is needed\n  "
            "correct scale, or leave it out to get the default"},
        Refusal{
            R"({"lora_parameters": [1]})",
            "cannot read adapter config f.json: lora_parameters is a JSON "
            "array, not an object\n  write it as {\"fine_tune_type\": "
            "\"lora\", \"lora_parameters\": {\"rank\": 8, \"scale\": 20.0}}"},
        Refusal{
            "[]",
            "cannot read adapter config f.json: its top level is a JSON array, "
            "not an object\n  write it as {\"fine_tune_type\": \"lora\", "
            "\"lora_parameters\": {\"rank\": 8, \"scale\": 20.0}}"},
        Refusal{
            R"({"peft_type": "LORA", "r": 4})",
            "adapter config f.json is in PEFT's form: peft_type or r at the "
            "top level instead of lora_parameters\n  convert the folder with "
            "mlxcel convert-adapter PEFT_DIR OUT_DIR"}));

TEST(AdapterConfig, RefusesNumbersThatAreNotFinite) {
  for (const char* text :
       {R"({"lora_parameters": {"scale": 1e999}})",
        R"({"lora_parameters": {"lora_alpha": -1e999}})",
        R"({"lora_parameters": {"scale": NaN}})"}) {
    EXPECT_THAT(
        [&] { parse_adapter_config(text, "f.json"); },
        ThrowsMessage<AdapterError>(
            HasSubstr("cannot read adapter config f.json: not valid JSON at "
                      "byte ")));
  }
}

}  // namespace
}  // namespace mlxcel
