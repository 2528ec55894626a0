// Whole families on the graph backend against the reference logits, plain and
// quantized.
#include "io/safetensors.h"
#include "models/builder.h"
#include "models/registry.h"
#include "support/fixtures.h"
#include "support/models/sequences.h"
#include "support/models/text_case.h"

#include <gtest/gtest.h>

#include <algorithm>

#include <fstream>

namespace mlxcel {
namespace {

using testing::Logits;
using testing::SequenceRunner;
using testing::TextCase;

struct GraphModel {
  explicit GraphModel(const std::filesystem::path& folder) {
    Config config = testing::read_case_config(folder);
    const Family& family =
        *find_by_model_type(config.get<std::string>("model_type"));
    DecoderSpec spec = decoder_spec(family, config);
    NameMap names(family.names, spec);
    weights = read_safetensors(folder / "model.safetensors").tensors;
    MatrixSource source(weights, config);
    BackendOptions options;
    options.activation_dtype = DType::f32;
    backend = make_graph_backend(options);
    model = build_model(
        family,
        {.backend = *backend,
         .names = names,
         .source = source,
         .cache_dtype = DType::f32,
         .terms = {}});
  }

  WeightMap weights;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Model> model;
};

// The oracles compute in f32 or f64, whatever the weights' type.
constexpr double kTolerance = 1e-3;

void check_case(const std::string& set, const std::string& name) {
  TextCase expected = testing::load_text_case(set, name);
  GraphModel graph(expected.model);
  SequenceRunner runner(*graph.backend, *graph.model);
  Logits whole = runner.prefill(runner.add(), expected.input_ids);
  EXPECT_LT(testing::max_difference(whole, expected.logits), kTolerance);

  int sequence = runner.add();
  Logits pieces = runner.prefill(sequence, expected.input_ids, 7);
  EXPECT_LT(testing::max_difference(pieces, whole), kTolerance);
  std::vector<float> last = pieces.back();
  for (size_t i = 0; i < expected.greedy.size(); ++i) {
    if (expected.margins[i] < 2 * kTolerance) {
      break;
    }
    int32_t token = testing::argmax(last);
    ASSERT_EQ(token, expected.greedy[i]) << "greedy step " << i;
    last = runner.decode(sequence, token);
  }
}

class GraphText : public ::testing::TestWithParam<std::string> {};
class GraphQuant : public ::testing::TestWithParam<std::string> {};

TEST_P(GraphText, MatchesTheReferenceLogits) {
  check_case("text", GetParam());
}

TEST_P(GraphQuant, MatchesTheReferenceLogits) {
  check_case("quant", GetParam());
}

std::vector<std::string> affine_cases() {
  std::vector<std::string> names = testing::runnable_cases("quant");
  std::erase_if(names, [](const std::string& name) {
    return name.rfind("affine_4b", 0) != 0 && name.rfind("affine_8b", 0) != 0;
  });
  return names;
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
           !family->names.input_first.empty() || !family->names.stacks.empty();
  });
  return names;
}

INSTANTIATE_TEST_SUITE_P(
    Text, GraphText, ::testing::ValuesIn(plain_cases()), [](const auto& test) {
      std::string name = test.param;  // names of tests hold no "-"
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });
INSTANTIATE_TEST_SUITE_P(
    Quant,
    GraphQuant,
    ::testing::ValuesIn(affine_cases()),
    [](const auto& test) {
      std::string name = test.param;  // names of tests hold no "-"
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

}  // namespace
}  // namespace mlxcel
