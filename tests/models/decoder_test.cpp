// Families against the reference logits on plain loops in double precision: a
// failure here is a wrong spec or name, not a wrong kernel.
#include "core/error.h"
#include "io/safetensors.h"
#include "models/builder.h"
#include "models/registry.h"
#include "support/fixtures.h"
#include "support/models/reference_backend.h"
#include "support/models/sequences.h"
#include "support/models/text_case.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>

namespace mlxcel {
namespace {

using testing::Logits;
using testing::SequenceRunner;
using testing::TextCase;

// A checkpoint of one file, built without the loading pipeline.
struct Built {
  explicit Built(const std::filesystem::path& folder)
      : config(testing::read_case_config(folder)),
        family(*find_by_model_type(config.get<std::string>("model_type"))),
        spec(decoder_spec(family, config)),
        names(family.names, spec),
        weights(read_safetensors(folder / "model.safetensors").tensors),
        source(weights, config),
        backend(testing::make_reference_backend()) {}

  std::unique_ptr<Model> build(LiveTerms terms = {}) {
    return build_model(
        family,
        {.backend = *backend,
         .names = names,
         .source = source,
         .cache_dtype = DType::f32,
         .terms = std::move(terms)});
  }

  Config config;
  const Family& family;
  DecoderSpec spec;
  NameMap names;
  WeightMap weights;
  MatrixSource source;
  std::unique_ptr<Backend> backend;
};

class DecoderCase : public ::testing::TestWithParam<std::string> {};

// The oracle computes in f32; double precision lands within a few 1e-5.
constexpr double kTolerance = 1e-4;

TEST_P(DecoderCase, MatchesTheReferenceLogits) {
  TextCase expected = testing::load_text_case("text", GetParam());
  Built built(expected.model);
  std::unique_ptr<Model> model = built.build();
  SequenceRunner runner(*built.backend, *model);
  int sequence = runner.add();
  Logits logits = runner.prefill(sequence, expected.input_ids);
  EXPECT_LT(testing::max_difference(logits, expected.logits), kTolerance);

  std::vector<float> last = logits.back();
  for (size_t i = 0; i < expected.greedy.size(); ++i) {
    int32_t token = testing::argmax(last);
    if (token != expected.greedy[i]) {
      EXPECT_LT(expected.margins[i], kTolerance) << "greedy step " << i;
      break;
    }
    last = runner.decode(sequence, token);
  }
}

TEST(DecodingDecayRates, RefusesTablesThatAreNotTheModels) {
  Built built(testing::fixture_folder("text", "minimax") / "model");
  std::string key = "model.layers.0.self_attn.slope_rate";
  WeightTensor stored = built.weights.at(key);
  std::byte* data = nullptr;
  WeightTensor changed = make_weight(stored.dtype, stored.shape, &data);
  std::memcpy(data, stored.data, stored.bytes);
  float first = 0;
  std::memcpy(&first, data, sizeof first);
  first *= 1.5F;
  std::memcpy(data, &first, sizeof first);
  built.weights.set(key, std::move(changed));
  try {
    built.build();
    FAIL() << "built";
  } catch (const CheckpointError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("decay rates"));
  }
}

// Whether the case's checkpoint has one of the stacks that loading spreads, or
// the family stores them [in, out], which takes other steps too.
bool has_stacks(const std::string& name, const Family& family) {
  WeightMap weights =
      read_safetensors(
          testing::case_folder("text", name) / "model" / "model.safetensors")
          .tensors;
  std::vector<std::string> keys = weights.keys();
  return std::ranges::any_of(
      family.names.stacks, [&](const PublishedStack& stack) {
        if (stack.input_first) {
          return true;
        }
        std::string end = stack.stem.substr(stack.stem.rfind('}') + 1);
        return std::ranges::any_of(keys, [&](const std::string& key) {
          return key.ends_with(end) || key.find(end + "_") != key.npos;
        });
      });
}

// The cases that need no step of the loading pipeline; nested configs and
// matrices stored input first or in stacks run in the tests of loading alone.
std::vector<std::string> plain_cases() {
  std::vector<std::string> names = testing::runnable_cases("text");
  std::erase_if(names, [](const std::string& name) {
    std::ifstream file(
        testing::case_folder("text", name) / "model" / "config.json");
    nlohmann::json config = nlohmann::json::parse(file);
    const Family* family =
        find_by_model_type(config.at("model_type").get<std::string>());
    return config.contains("text_config") ||
           !family->names.input_first.empty() || has_stacks(name, *family);
  });
  return names;
}

INSTANTIATE_TEST_SUITE_P(
    Text,
    DecoderCase,
    ::testing::ValuesIn(plain_cases()),
    [](const auto& test) {
      std::string name = test.param;  // names of tests hold no "-"
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

}  // namespace
}  // namespace mlxcel
