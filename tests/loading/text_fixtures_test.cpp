// Whole models against the reference logits: every registered family, on every
// backend and instruction set of this machine, however prompts are cut and
// batched.
#include "core/cpu_features.h"
#include "loading/pipeline.h"
#include "support/models/sequences.h"
#include "support/models/text_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <tuple>
#include <vector>

namespace mlxcel {
namespace {

using testing::Logits;
using testing::SequenceRunner;
using testing::TextCase;

// "graph", or the instruction set that the CPU backend is held to.
std::vector<std::string> targets() {
  std::vector<std::string> out;
  for (Isa isa : supported_isas()) {
    out.emplace_back(name_of(isa));
  }
#ifdef MLXCEL_TEST_GRAPH
  out.emplace_back("graph");
#endif
  return out;
}

LoadedModel load(
    const TextCase& test_case,
    const std::string& target,
    std::optional<DType> dtype) {
  LoadOptions options;
  options.model = test_case.model;
  options.dtype = dtype;
  if (target == "graph") {
    options.backend = BackendKind::graph;
  } else {
    options.backend = BackendKind::cpu;
    setenv("MLXCEL_CPU_ISA", target.c_str(), 1);
  }
  LoadedModel model = load_model(options);
  unsetenv("MLXCEL_CPU_ISA");
  return model;
}

// Compares up to the first step whose winner leads by less than `margin`.
void expect_greedy(
    const TextCase& test_case,
    const std::vector<int32_t>& actual,
    double margin) {
  for (size_t i = 0; i < test_case.greedy.size(); ++i) {
    if (double(test_case.margins[i]) < margin) {
      return;
    }
    ASSERT_EQ(actual[i], test_case.greedy[i]) << "greedy step " << i;
  }
}

std::vector<int32_t> decode_greedily(
    SequenceRunner& runner,
    int sequence,
    std::vector<float> last,
    size_t steps) {
  std::vector<int32_t> out;
  while (out.size() < steps) {
    out.push_back(testing::argmax(last));
    last = runner.decode(sequence, out.back());
  }
  return out;
}

// Continues without a cache: each token comes from a fresh prompt.
std::vector<int32_t> prefill_greedily(
    SequenceRunner& runner, std::vector<int32_t> tokens, size_t steps) {
  std::vector<int32_t> out;
  while (out.size() < steps) {
    out.push_back(testing::argmax(runner.prefill(runner.add(), tokens).back()));
    tokens.push_back(out.back());
  }
  return out;
}

using Parameters = std::tuple<std::string, std::string>;  // case, target

std::string name_of_parameters(
    const ::testing::TestParamInfo<Parameters>& test) {
  std::string name = std::get<0>(test.param) + "_on_" + std::get<1>(test.param);
  std::replace(name.begin(), name.end(), '-', '_');  // not allowed in names
  return name;
}

class TextFixture : public ::testing::TestWithParam<Parameters> {
 protected:
  const std::string& name() const {
    return std::get<0>(GetParam());
  }
  const std::string& target() const {
    return std::get<1>(GetParam());
  }
  bool same_bits() const {
    return target() != "graph";
  }
  // What is equal to a rounding only has to be computed finely enough to tell.
  std::optional<DType> compared_dtype() const {
    return same_bits() ? std::nullopt : std::optional(DType::f32);
  }
  void expect_equal(const Logits& actual, const Logits& expected) const {
    double distance = testing::max_difference(actual, expected);
    if (same_bits()) {
      EXPECT_EQ(distance, 0);
    } else {
      EXPECT_LT(distance, 1e-3);
    }
  }
};

// The references computed in f32, also where the weights are bf16.
constexpr double kF32Tolerance = 2e-3;

TEST_P(TextFixture, MatchesTheReferenceInF32) {
  TextCase expected = testing::load_text_case("text", name());
  LoadedModel loaded = load(expected, target(), DType::f32);
  SequenceRunner runner(*loaded.backend, *loaded.model);
  int sequence = runner.add();
  Logits logits = runner.prefill(sequence, expected.input_ids);
  double distance = testing::max_difference(logits, expected.logits);
  RecordProperty("max_abs_difference", std::to_string(distance));
  EXPECT_LE(
      distance,
      std::min(expected.meta.at("abs_tolerance").get<double>(), kF32Tolerance));

  size_t steps = expected.greedy.size();
  expect_greedy(
      expected,
      decode_greedily(runner, sequence, logits.back(), steps),
      kF32Tolerance);
  expect_greedy(
      expected,
      prefill_greedily(runner, expected.input_ids, steps),
      kF32Tolerance);
}

TEST_P(TextFixture, MatchesTheReferenceInItsOwnDtype) {
  TextCase expected = testing::load_text_case("text", name());
  LoadedModel loaded = load(expected, target(), std::nullopt);
  double tolerance = expected.meta.at("abs_tolerance").get<double>();
  SequenceRunner runner(*loaded.backend, *loaded.model);
  int sequence = runner.add();
  Logits logits = runner.prefill(sequence, expected.input_ids);
  EXPECT_LE(testing::max_difference(logits, expected.logits), tolerance);
  expect_greedy(
      expected,
      decode_greedily(runner, sequence, logits.back(), expected.greedy.size()),
      tolerance);
}

TEST_P(TextFixture, TheCutOfAPromptDoesNotShow) {
  TextCase expected = testing::load_text_case("text", name());
  LoadedModel loaded = load(expected, target(), compared_dtype());
  SequenceRunner runner(*loaded.backend, *loaded.model);
  Logits whole = runner.prefill(runner.add(), expected.input_ids);
  for (int chunk : {5, 1}) {
    SCOPED_TRACE(chunk);
    expect_equal(
        runner.prefill(runner.add(), expected.input_ids, chunk), whole);
  }
}

// Prompts of unequal length together, then generated rows beside a new prompt:
// each row as when its sequence runs alone.
TEST_P(TextFixture, ABatchEqualsItsSequencesAlone) {
  TextCase expected = testing::load_text_case("text", name());
  LoadedModel loaded = load(expected, target(), compared_dtype());
  const std::vector<int32_t>& ids = expected.input_ids;
  std::vector<std::vector<int32_t>> prompts;
  for (size_t length : {ids.size(), size_t(17), size_t(9), size_t(1)}) {
    prompts.emplace_back(ids.begin(), ids.begin() + int64_t(length));
  }
  constexpr int32_t next = 3;  // a token of every vocabulary

  std::vector<Logits> alone;
  std::vector<std::vector<float>> alone_next;
  SequenceRunner single(*loaded.backend, *loaded.model);
  for (const std::vector<int32_t>& prompt : prompts) {
    int sequence = single.add();
    alone.push_back(single.prefill(sequence, prompt));
    alone_next.push_back(single.decode(sequence, next));
  }

  SequenceRunner batch(*loaded.backend, *loaded.model);
  std::vector<SequenceRunner::Piece> pieces;
  Logits expected_rows;
  for (size_t i = 0; i + 1 < prompts.size(); ++i) {
    pieces.push_back({.sequence = batch.add(), .tokens = prompts[i]});
    expected_rows.insert(expected_rows.end(), alone[i].begin(), alone[i].end());
  }
  expect_equal(batch.run(pieces), expected_rows);

  pieces = {{.sequence = batch.add(), .tokens = prompts.back()}};
  expected_rows = alone.back();
  for (size_t i = 0; i + 1 < prompts.size(); ++i) {
    pieces.push_back({.sequence = int(i), .tokens = {next}, .prompt = false});
    expected_rows.push_back(alone_next[i]);
  }
  expect_equal(batch.run(pieces), expected_rows);
}

INSTANTIATE_TEST_SUITE_P(
    Text,
    TextFixture,
    ::testing::Combine(
        ::testing::ValuesIn(testing::runnable_cases("text")),
        ::testing::ValuesIn(targets())),
    name_of_parameters);

class PackedFixture : public TextFixture {};

TEST_P(PackedFixture, MatchesTheReference) {
  TextCase expected = testing::load_text_case("quant", name());
  LoadedModel loaded = load(expected, target(), std::nullopt);
  SequenceRunner runner(*loaded.backend, *loaded.model);
  int sequence = runner.add();
  Logits logits = runner.prefill(sequence, expected.input_ids);
  EXPECT_LE(
      testing::max_difference(logits, expected.logits),
      expected.meta.at("atol").get<double>());
  EXPECT_LE(
      testing::mean_difference(logits, expected.logits),
      expected.meta.at("mean_atol").get<double>());
  expect_greedy(
      expected,
      decode_greedily(runner, sequence, logits.back(), expected.greedy.size()),
      expected.meta.at("greedy_margin_needed").get<double>());
}

// The cases in formats that the backends compute on, affine of 4 and 8 bits,
// among them those whose config misstates the format, and published experts.
std::vector<std::string> packed_cases() {
  std::vector<std::string> out;
  for (const std::string& name : testing::runnable_cases("quant")) {
    if (name.starts_with("affine_4b") || name.starts_with("affine_8b") ||
        name.starts_with("config_") || name.starts_with("gpt_oss_mxfp4") ||
        name == "mixed_override_false") {
      out.push_back(name);
    }
  }
  return out;
}

INSTANTIATE_TEST_SUITE_P(
    Quant,
    PackedFixture,
    ::testing::Combine(
        ::testing::ValuesIn(packed_cases()), ::testing::ValuesIn(targets())),
    name_of_parameters);

}  // namespace
}  // namespace mlxcel
