// Families against the reference logits on plain loops in double precision: a
// failure here is a wrong spec or name, not a wrong kernel.
#include "core/error.h"
#include "core/log.h"
#include "core/row_kernels.h"
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
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>

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

// Stored decays of MiniMax: see models/lightning.h. In the cases text/
// minimax_text01 and minimax_tables they do not follow from their slopes, and
// each greedy token comes from a pass over all tokens before it. Published code
// that goes on from a cache decays its state by the slopes alone, and draws
// other tokens from the third on.
struct StoredDecays : ::testing::Test {
  Built built{testing::fixture_folder("text", "minimax") / "model"};
  const std::string layer = "model.layers.0.self_attn.";
  std::string warnings;

  std::vector<float> read(const std::string& name) {
    const WeightTensor& tensor = built.weights.at(layer + name);
    std::vector<float> out(size_t(element_count(tensor.shape)));
    read_as_f32(tensor, out.data());
    return out;
  }
  void write(
      const std::string& name,
      const std::vector<float>& values,
      DType dtype = DType::f32) {
    Shape shape = built.weights.at(layer + name).shape;
    std::byte* data = nullptr;
    WeightTensor changed = make_weight(dtype, shape, &data);
    convert_from_f32(values.data(), int64_t(values.size()), dtype, data);
    built.weights.set(layer + name, std::move(changed));
  }
  bool whole_sequence() {
    LogSink before = set_log_sink([&](LogLevel, std::string_view message) {
      warnings += std::string(message) + "\n";
    });
    auto model = built.build();
    set_log_sink(std::move(before));
    return model->context_traits().whole_sequence;
  }
  std::string refusal() {
    try {
      built.build();
    } catch (const CheckpointError& error) {
      return error.what();
    }
    return "accepted";
  }
};

TEST_F(StoredDecays, AreARecurrenceWhereTheyFollowFromTheirSlopes) {
  EXPECT_FALSE(whole_sequence());
  for (const char* name :
       {"slope_rate", "query_decay", "key_decay", "diagonal_decay"}) {
    write(name, read(name), DType::bf16);
  }
  EXPECT_FALSE(whole_sequence());
  // Slopes of another layer, with their tables.
  std::vector<float> slopes = read("slope_rate"), table;
  for (float& slope : slopes) {
    slope *= 1.5f;
  }
  write("slope_rate", slopes);
  EXPECT_TRUE(whole_sequence());
  for (const char* name : {"query_decay", "key_decay", "diagonal_decay"}) {
    table = read(name);
    for (float& value : table) {
      value = std::pow(value, 1.5f);
    }
    write(name, table);
  }
  warnings.clear();
  EXPECT_FALSE(whole_sequence());
  EXPECT_EQ(warnings, "");
}

TEST_F(StoredDecays, MakeAModelOfWholeSequencesWhereTheyDoNot) {
  std::vector<float> table = read("diagonal_decay");
  table[1] = 0.25f;  // token 0 sees token 1
  write("diagonal_decay", table);
  EXPECT_TRUE(whole_sequence());
  EXPECT_THAT(
      warnings,
      ::testing::HasSubstr("layers.0.self_attn.diagonal_decay positions"));
  write("diagonal_decay", std::vector<float>(table.size()));
  EXPECT_TRUE(whole_sequence());
}

TEST_F(StoredDecays, AreRefusedWhereTheyAreDamaged) {
  using ::testing::AllOf;
  using ::testing::HasSubstr;
  std::vector<float> table = read("key_decay"), slopes = read("slope_rate");
  const WeightTensor kept = built.weights.at(layer + "key_decay");
  table[3] = std::numeric_limits<float>::quiet_NaN();
  write("key_decay", table);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("key_decay"), HasSubstr("entry 3")));

  std::byte* data = nullptr;
  WeightTensor shorter = make_weight(DType::f32, {2, 4, 1}, &data);
  std::memset(data, 0, shorter.bytes);
  built.weights.set(layer + "key_decay", std::move(shorter));
  EXPECT_THAT(
      refusal(),
      AllOf(
          HasSubstr("key_decay"),
          HasSubstr("[2, 4, 1]"),
          HasSubstr("[2, 5, 1]")));

  built.weights.erase(layer + "key_decay");
  EXPECT_THAT(refusal(), HasSubstr("has no " + layer + "key_decay"));

  built.weights.set(layer + "key_decay", kept);
  slopes[1] = -40;
  write("slope_rate", slopes);
  EXPECT_THAT(refusal(), HasSubstr("grows without bound"));
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
