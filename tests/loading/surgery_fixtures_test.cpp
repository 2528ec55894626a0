// Surgery against the reference: every recipe of the fixtures, its edited
// tensors and the model's outputs on every backend; and every bad recipe.
#include "core/error.h"
#include "io/checkpoint.h"
#include "io/json.h"
#include "loading/compose.h"
#include "loading/config_file.h"
#include "loading/detect.h"
#include "loading/pipeline.h"
#include "loading/sanitize_weights.h"
#include "support/fixtures.h"
#include "support/models/sequences.h"
#include "support/models/text_case.h"
#include "support/temporary_folder.h"
#include "surgery/surgery.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <set>

namespace mlxcel {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::fixture_root;
using testing::Logits;
using testing::SequenceRunner;
using testing::TemporaryFolder;

fs::path root() {
  return fixture_root() / "surgery";
}

// Names of the index's "cases" or "bad".
std::vector<std::string> listed(const char* list) {
  std::vector<std::string> out;
  json index = read_json_file(root() / "index.json");
  for (const json& entry : index.at(list)) {
    out.push_back(entry.at("name"));
  }
  return out;
}

template <typename T>
std::vector<T> values(const WeightMap& tensors, const std::string& key) {
  const WeightTensor& tensor = tensors.at(key);
  std::vector<T> out(tensor.bytes / sizeof(T));
  std::memcpy(out.data(), tensor.data, tensor.bytes);
  return out;
}

struct Case {
  explicit Case(const std::string& name) : folder(root() / "cases" / name) {
    about = read_json_file(folder / "case.json");
    expected = read_safetensors(folder / "expected.safetensors").tensors;
    model = root() / about.at("base").get<std::string>();
    recipe = folder / "surgery.yaml";
    if (about.value("template", false)) {
      std::string text = read_text_file(recipe);
      std::string mark = "@FIXTURE_DIR@";
      for (size_t at; (at = text.find(mark)) != std::string::npos;) {
        text.replace(at, mark.size(), fs::absolute(root()).string());
      }
      recipe = scratch.write("surgery.yaml", text);
    }
  }

  fs::path folder, model, recipe;
  json about;
  WeightMap expected;
  TemporaryFolder scratch;
};

// The checkpoint's tensors as surgery finds them.
struct Base {
  explicit Base(const fs::path& folder)
      : config(read_config(folder)),
        detection(detect_model(folder, config)),
        family(require_generation(detection, config)),
        names(family.names, decoder_spec(family, config)),
        weights(load_weights(folder)) {
    sanitize_weights(config, names, weights);
  }

  Config config;
  Detection detection;
  const Family& family;
  NameMap names;
  WeightMap weights;
};

void operate(const fs::path& recipe_file, Base& base, ThreadPool& pool) {
  Recipe recipe = read_recipe(recipe_file);
  apply_surgery(
      plan_surgery(recipe, {base.names.spec(), base.names}, base.weights),
      base.weights,
      pool);
}

bool same_bytes(const WeightTensor& a, const WeightTensor& b) {
  return a.dtype == b.dtype && a.shape == b.shape &&
         std::memcmp(a.data, b.data, a.bytes) == 0;
}

std::string name_of_case(const ::testing::TestParamInfo<std::string>& test) {
  return test.param;
}

// YAML that may as well be refused, and is.
bool refused(const Case& test_case) {
  if (!test_case.about.value("refusal_also_accepted", false)) {
    return false;
  }
  try {
    read_recipe(test_case.recipe);
  } catch (const SurgeryError&) {
    return true;
  }
  return false;
}

class GoodRecipe : public ::testing::TestWithParam<std::string> {};

TEST_P(GoodRecipe, ChangesTheTensorsItShouldAndNoOther) {
  Case expected(GetParam());
  if (refused(expected)) {
    return;
  }
  Base base(expected.model);
  WeightMap before = base.weights;
  ThreadPool pool(2);
  operate(expected.recipe, base, pool);

  std::set<std::string> changed;
  for (const json& key : expected.about.at("changed")) {
    changed.insert(key.get<std::string>());
  }
  ASSERT_EQ(base.weights.keys(), before.keys());
  for (const auto& [key, tensor] : base.weights) {
    const WeightTensor* want = expected.expected.find("changed/" + key);
    if (!changed.contains(key)) {
      EXPECT_TRUE(same_bytes(tensor, before.at(key))) << key;
      continue;
    }
    ASSERT_EQ(tensor.shape, before.at(key).shape) << key;
    ASSERT_EQ(tensor.dtype, before.at(key).dtype) << key;
    if (want == nullptr) {
      continue;  // large ones are not stored; the logits show them
    }
    ASSERT_EQ(tensor.shape, want->shape) << key;
    ASSERT_EQ(tensor.dtype, want->dtype) << key;
    if (!is_float(tensor.dtype)) {
      EXPECT_TRUE(same_bytes(tensor, *want)) << key;
      continue;
    }
    double relative = expected.about.at("tensor_rtol");
    double absolute = expected.about.at("tensor_atol");
    size_t count = size_t(element_count(tensor.shape));
    std::vector<float> got(count);
    std::vector<float> wanted(count);
    read_as_f32(tensor, got.data());
    read_as_f32(*want, wanted.data());
    for (size_t i = 0; i < count; ++i) {
      ASSERT_NEAR(got[i], wanted[i], absolute + relative * std::abs(wanted[i]))
          << key << " at " << i;
    }
  }
}

TEST_P(GoodRecipe, GivesTheSameBitsOnAnyNumberOfThreads) {
  Case expected(GetParam());
  if (refused(expected)) {
    return;
  }
  Base one(expected.model);
  Base three(expected.model);
  ThreadPool alone(1);
  ThreadPool pool(3);
  operate(expected.recipe, one, alone);
  operate(expected.recipe, three, pool);
  for (const auto& [key, tensor] : one.weights) {
    EXPECT_TRUE(same_bytes(tensor, three.weights.at(key))) << key;
  }
}

// Logits of every row and the greedy continuation.
void expect_outputs(const Case& expected, BackendKind backend) {
  if (refused(expected)) {
    return;
  }
  LoadOptions options;
  options.model = expected.model;
  options.surgery = expected.recipe;
  options.backend = backend;
  options.threads = 2;
  LoadedModel model = load_model(options);
  SequenceRunner runner(*model.backend, *model.model);
  int sequence = runner.add();
  auto ids = values<int32_t>(expected.expected, "input_ids");
  Logits logits = runner.prefill(sequence, ids);

  std::vector<float> flat = values<float>(expected.expected, "logits");
  size_t vocab = flat.size() / ids.size();
  Logits wanted;
  for (size_t row = 0; row < ids.size(); ++row) {
    auto begin = flat.begin() + int64_t(row * vocab);
    wanted.emplace_back(begin, begin + int64_t(vocab));
  }
  EXPECT_LE(
      testing::max_difference(logits, wanted),
      expected.about.at("atol").get<double>());
  EXPECT_LE(
      testing::mean_difference(logits, wanted),
      expected.about.at("mean_atol").get<double>());

  auto greedy = values<int32_t>(expected.expected, "greedy");
  auto margins = values<float>(expected.expected, "margins");
  double needed = expected.about.at("greedy_margin_needed");
  std::vector<float> last = logits.back();
  for (size_t i = 0; i < greedy.size() && double(margins[i]) >= needed; ++i) {
    ASSERT_EQ(testing::argmax(last), greedy[i]) << "greedy step " << i;
    last = runner.decode(sequence, greedy[i]);
  }
}

TEST_P(GoodRecipe, GivesTheReferenceOutputsOnTheCpu) {
  expect_outputs(Case(GetParam()), BackendKind::cpu);
}

#ifdef MLXCEL_TEST_GRAPH
TEST_P(GoodRecipe, GivesTheReferenceOutputsAsAGraph) {
  expect_outputs(Case(GetParam()), BackendKind::graph);
}
#endif

INSTANTIATE_TEST_SUITE_P(
    Surgery, GoodRecipe, ::testing::ValuesIn(listed("cases")), name_of_case);

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) {
    return char(std::tolower(c));
  });
  return text;
}

class WorkingFolder {
 public:
  explicit WorkingFolder(const fs::path& folder) : before_(fs::current_path()) {
    fs::current_path(folder);
  }
  ~WorkingFolder() {
    fs::current_path(before_);
  }

 private:
  fs::path before_;
};

std::string refusal(const fs::path& model, const fs::path& recipe) {
  LoadOptions options;
  options.model = model;
  options.surgery = recipe;
  options.backend = BackendKind::cpu;
  options.threads = 1;
  try {
    load_model(options);
  } catch (const SurgeryError& error) {
    return error.what();
  }
  ADD_FAILURE() << "the recipe was accepted";
  return "";
}

class BadRecipe : public ::testing::TestWithParam<std::string> {
 protected:
  BadRecipe()
      : folder_(fs::absolute(root() / "bad" / GetParam())),
        about_(read_json_file(folder_ / "expected_error.json")),
        model_(fs::absolute(root() / about_.at("base").get<std::string>())) {}

  void expect_mentions(const std::string& message) const {
    for (const json& needed : about_.at("must_mention")) {
      EXPECT_NE(
          lower(message).find(lower(needed.get<std::string>())),
          std::string::npos)
          << needed << " is missing in: " << message;
    }
  }

  fs::path folder_;
  json about_;
  fs::path model_;
};

TEST_P(BadRecipe, IsRefusedByName) {
  WorkingFolder here(root());  // a source found from here is not found
  fs::path recipe = folder_ / "surgery.yaml";
  if (about_.at("stage") != "apply") {
    expect_mentions(refusal(model_, recipe));
    return;
  }
  // On the tensors themselves: some formats load nowhere else.
  Base base(model_);
  ThreadPool pool(1);
  try {
    operate(recipe, base, pool);
    ADD_FAILURE() << "the recipe was accepted";
  } catch (const SurgeryError& error) {
    expect_mentions(error.what());
  }
}

TEST_P(BadRecipe, IsRefusedBeforeTheModelIsRead) {
  if (about_.at("stage") != "before_weights") {
    return;  // needs the tensors' headers, which the test above has
  }
  WorkingFolder here(root());
  TemporaryFolder copy;
  fs::copy(model_ / "config.json", copy.path() / "config.json");
  expect_mentions(refusal(copy.path(), folder_ / "surgery.yaml"));
  copy.write("model.safetensors", "cut");
  expect_mentions(refusal(copy.path(), folder_ / "surgery.yaml"));
}

INSTANTIATE_TEST_SUITE_P(
    Surgery, BadRecipe, ::testing::ValuesIn(listed("bad")), name_of_case);

// Two operations on the same tensors equal one after the other.
TEST(SurgeryOrder, AChainEqualsItsOperationsOneByOne) {
  Case expected("order_five");
  Base chained(expected.model);
  ThreadPool pool(2);
  operate(expected.recipe, chained, pool);

  Base stepwise(expected.model);
  Recipe recipe = read_recipe(expected.recipe);
  for (const Operation& operation : recipe.operations) {
    Recipe single;
    single.operations = {operation};
    apply_surgery(
        plan_surgery(
            single, {stepwise.names.spec(), stepwise.names}, stepwise.weights),
        stepwise.weights,
        pool);
  }
  for (const auto& [key, tensor] : chained.weights) {
    EXPECT_TRUE(same_bytes(tensor, stepwise.weights.at(key))) << key;
  }
}

TEST(SurgeryOrder, ALateFailureLeavesTheWeightsAsTheyWere) {
  Base base(root() / "bases" / "float");
  WeightMap before = base.weights;
  ThreadPool pool(2);
  EXPECT_THROW(
      operate(root() / "bad" / "late_failure" / "surgery.yaml", base, pool),
      SurgeryError);
  for (const auto& [key, tensor] : base.weights) {
    EXPECT_EQ(tensor.data, before.at(key).data) << key;
  }
}

// An edit that fails while others have been made already.
TEST(SurgeryOrder, AFailureInTheMiddleLeavesTheWeightsAsTheyWere) {
  class Failing : public Edit {
    void apply(
        const WeightTensor&, int64_t, int64_t, std::byte*) const override {
      throw SurgeryError("failed on purpose");
    }
  };
  Case expected("scale_glob");
  Base base(expected.model);
  WeightMap before = base.weights;
  ThreadPool pool(2);
  Recipe recipe = read_recipe(expected.recipe);
  auto plan =
      plan_surgery(recipe, {base.names.spec(), base.names}, base.weights);
  plan.back().edits.push_back(
      {"model.norm.weight", std::make_shared<Failing>()});
  EXPECT_THROW(apply_surgery(plan, base.weights, pool), SurgeryError);
  for (const auto& [key, tensor] : base.weights) {
    EXPECT_EQ(tensor.data, before.at(key).data) << key;
  }
}

TEST(SurgeryOrder, AnEmptyListGivesTheBitsOfNoRecipe) {
  Case expected("empty");
  auto ids = values<int32_t>(expected.expected, "input_ids");
  auto logits = [&](bool with) {
    LoadOptions options;
    options.model = expected.model;
    options.backend = BackendKind::cpu;
    if (with) {
      options.surgery = expected.recipe;
    }
    LoadedModel model = load_model(options);
    SequenceRunner runner(*model.backend, *model.model);
    return runner.prefill(runner.add(), ids);
  };
  EXPECT_EQ(logits(true), logits(false));
}

}  // namespace
}  // namespace mlxcel
