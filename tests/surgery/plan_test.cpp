// Recipes matched against checkpoints that do not come from the fixtures: fused
// projections, headers that disagree with the config, requantizing in a chain.
#include "core/error.h"
#include "core/half.h"
#include "models/names.h"
#include "support/log_capture.h"
#include "surgery/surgery.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

namespace mlxcel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

WeightTensor ones(DType dtype, Shape shape) {
  std::byte* data = nullptr;
  WeightTensor out = make_weight(dtype, std::move(shape), &data);
  for (int64_t i = 0; i < element_count(out.shape); ++i) {
    float one = 1;
    uint16_t half = f32_to_bf16(one);
    if (dtype == DType::f32) {
      std::memcpy(data + 4 * i, &one, 4);
    } else if (dtype == DType::bf16) {
      std::memcpy(data + 2 * i, &half, 2);
    }
  }
  if (!is_float(dtype)) {
    std::memset(data, 0x11, out.bytes);
  }
  return out;
}

std::vector<float> floats(const WeightTensor& tensor) {
  std::vector<float> out(size_t(element_count(tensor.shape)));
  read_as_f32(tensor, out.data());
  return out;
}

// One block: 4 query heads of 8 features over 2 of key and value, hidden 32,
// 16 MLP channels.
struct Model {
  explicit Model(const FamilyNames& family = hf_decoder_names())
      : names(family, make_spec()) {}

  static DecoderSpec make_spec() {
    BlockSpec block;
    block.attention.heads = {.query = 4, .key_value = 2, .dim = 8};
    block.mlp.intermediate_size = 16;
    return {.hidden_size = 32, .vocab_size = 8, .blocks = {block}};
  }

  Operation operation(OperationKind kind, const std::string& pattern) const {
    Operation out;
    out.kind = kind;
    out.place = "r.yaml, line 3, column 3";
    out.pattern = Glob(pattern);
    return out;
  }
  std::vector<PlannedOperation> plan(const Recipe& recipe) const {
    return plan_surgery(recipe, {names.spec(), names}, weights);
  }
  void apply(const Recipe& recipe) {
    ThreadPool pool(2);
    apply_surgery(plan(recipe), weights, pool);
  }
  std::string refusal(const Operation& operation) const {
    Recipe recipe;
    recipe.operations = {operation};
    try {
      plan(recipe);
    } catch (const SurgeryError& error) {
      return error.what();
    }
    return "accepted";
  }

  NameMap names;
  WeightMap weights;
};

constexpr const char* kAttention = "model.layers.0.self_attn.";
constexpr const char* kMlp = "model.layers.0.mlp.";

TEST(Plan, PrunesTheQueryRowsOfAFusedProjection) {
  Model model(hf_decoder_names({split_rows(
      "layers.{l}.self_attn.qkv_proj",
      {"layers.{l}.attention.q",
       "layers.{l}.attention.k",
       "layers.{l}.attention.v"})}));
  std::string key = std::string(kAttention) + "qkv_proj.weight";
  model.weights.set(key, ones(DType::f32, {64, 32}));
  Recipe recipe;
  recipe.operations = {model.operation(OperationKind::prune, "*")};
  recipe.operations[0].granularity = Granularity::attention_head;
  recipe.operations[0].ids = {1, 3};
  model.apply(recipe);
  std::vector<float> got = floats(model.weights.at(key));
  for (size_t row = 0; row < 64; ++row) {
    bool pruned = (row >= 8 && row < 16) || (row >= 24 && row < 32);
    EXPECT_EQ(got[row * 32], pruned ? 0 : 1) << row;
    EXPECT_EQ(got[row * 32 + 31], pruned ? 0 : 1) << row;
  }
}

// Without source_key each tensor comes from the source's of the same name,
// whatever signs the pattern has.
TEST(Plan, ReplacesUnderTheSameKey) {
  Model model;
  std::string q = std::string(kAttention) + "q_proj.weight";
  std::string k = std::string(kAttention) + "k_proj.weight";
  model.weights.set(q, ones(DType::bf16, {32, 32}));
  model.weights.set(k, ones(DType::bf16, {16, 32}));
  auto source = std::make_shared<Source>();
  source->path = "d.safetensors";
  for (const std::string& key : {q, k}) {
    std::byte* data = nullptr;
    WeightTensor zeros =
        make_weight(DType::bf16, model.weights.at(key).shape, &data);
    std::memset(data, 0, zeros.bytes);
    source->tensors.set(key, zeros);
  }
  Recipe recipe;
  recipe.operations = {model.operation(
      OperationKind::replace, "model.layers.?.*.[kq]_*.weight")};
  recipe.operations[0].source = source;
  model.apply(recipe);
  for (const std::string& key : {q, k}) {
    EXPECT_THAT(floats(model.weights.at(key)), ::testing::Each(0)) << key;
  }
}

// The pattern and the list both choose: what only one of them names stays.
TEST(Plan, PrunesTheListedLayersThatThePatternMatches) {
  Model model;
  model.names = NameMap(hf_decoder_names(), [] {
    DecoderSpec spec = Model::make_spec();
    spec.blocks.push_back(spec.blocks.front());
    return spec;
  }());
  const std::string keys[] = {
      "model.layers.0.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight"};
  for (const std::string& key : keys) {
    model.weights.set(key, ones(DType::f32, {16, 32}));
  }
  Operation prune =
      model.operation(OperationKind::prune, "model.layers.1.mlp.*");
  prune.granularity = Granularity::layer;
  prune.ids = {0};
  EXPECT_THAT(model.refusal(prune), HasSubstr("matches no tensor of layer 0"));
  prune.ids = {0, 1};
  Recipe recipe;
  recipe.operations = {prune};
  testing::LogCapture log;
  model.apply(recipe);
  EXPECT_THAT(
      log.warnings, ElementsAre(HasSubstr("matches no tensor of layer 0")));
  EXPECT_THAT(floats(model.weights.at(keys[0])), ::testing::Each(1));
  EXPECT_THAT(floats(model.weights.at(keys[1])), ::testing::Each(0));
}

TEST(Plan, PrunesBothHalvesOfAFusedMlp) {
  Model model(hf_decoder_names({split_rows(
      "layers.{l}.mlp.gate_up_proj",
      {"layers.{l}.mlp.gate", "layers.{l}.mlp.up"})}));
  std::string key = std::string(kMlp) + "gate_up_proj.weight";
  model.weights.set(key, ones(DType::bf16, {32, 32}));
  Recipe recipe;
  recipe.operations = {model.operation(OperationKind::prune, "*mlp*")};
  recipe.operations[0].granularity = Granularity::mlp_channel;
  recipe.operations[0].ids = {5};
  model.apply(recipe);
  std::vector<float> got = floats(model.weights.at(key));
  for (size_t row = 0; row < 32; ++row) {
    EXPECT_EQ(got[row * 32], row == 5 || row == 21 ? 0 : 1) << row;
  }
}

// Columns outside the tensor must never be written.
TEST(Plan, RefusesMatricesThatDoNotFitTheConfig) {
  Model model;
  Operation heads = model.operation(OperationKind::prune, "*o_proj*");
  heads.granularity = Granularity::attention_head;
  heads.ids = {3};
  std::string stem = std::string(kAttention) + "o_proj";
  model.weights.set(stem + ".weight", ones(DType::f32, {32, 16}));
  EXPECT_EQ(
      model.refusal(heads),
      "cannot apply op prune (r.yaml, line 3, column 3): tensor " + stem +
          ".weight has shape [32, 16], which is no matrix of the 32 columns "
          "that config.json asks for\n"
          "  check that config.json and the weights belong together");
  model.weights.set(stem + ".weight", ones(DType::f32, {32}));
  EXPECT_THAT(model.refusal(heads), HasSubstr("no matrix of the 32 columns"));
  // Packed, with scales of no use.
  model.weights.set(stem + ".weight", ones(DType::u32, {32, 4}));
  for (const Shape& shape :
       {Shape{32, 0}, Shape{32, 5}, Shape{8, 2}, Shape{32}}) {
    model.weights.set(stem + ".scales", ones(DType::f32, shape));
    model.weights.set(stem + ".biases", ones(DType::f32, shape));
    EXPECT_THAT(model.refusal(heads), HasSubstr("no matrix of the 32 columns"))
        << to_string(shape);
  }
}

TEST(Plan, PrunesPackedColumnsThatFillGroupsAndRefusesOthers) {
  Model model;
  std::string stem = std::string(kAttention) + "o_proj";
  model.weights.set(stem + ".weight", ones(DType::u32, {32, 4}));
  model.weights.set(stem + ".scales", ones(DType::f32, {32, 2}));
  model.weights.set(stem + ".biases", ones(DType::f32, {32, 2}));
  Operation heads = model.operation(OperationKind::prune, "*o_proj.weight");
  heads.granularity = Granularity::attention_head;
  heads.ids = {3};
  EXPECT_THAT(
      model.refusal(heads),
      HasSubstr("packed in groups of 16 columns, and columns 24 to 31 are no "
                "whole groups"));
  heads.ids = {2, 3};
  Recipe recipe;
  recipe.operations = {heads};
  WeightTensor codes = model.weights.at(stem + ".weight");
  model.apply(recipe);
  EXPECT_EQ(model.weights.at(stem + ".weight").data, codes.data);
  for (const char* part : {".scales", ".biases"}) {
    std::vector<float> got = floats(model.weights.at(stem + part));
    EXPECT_EQ(got[0], 1);
    EXPECT_EQ(got[1], 0);
  }
}

TEST(Plan, TheTiedHeadAndTheEmbeddingAreApart) {
  Model model;
  model.weights.set("model.embed_tokens.weight", ones(DType::f32, {8, 32}));
  model.weights.set(
      "lm_head.weight", model.weights.at("model.embed_tokens.weight"));
  Recipe recipe;
  recipe.operations = {
      model.operation(OperationKind::scale, "*embed*"),
      model.operation(OperationKind::scale, "*")};
  recipe.operations[0].factor = 3;
  recipe.operations[1].factor = 2;
  model.apply(recipe);
  EXPECT_EQ(floats(model.weights.at("model.embed_tokens.weight"))[7], 6);
  EXPECT_EQ(floats(model.weights.at("lm_head.weight"))[7], 2);
}

// A source that holds every key of `weights` as ones.
std::shared_ptr<Source> source_of(
    std::initializer_list<WeightTensor> tensors, const std::string& key) {
  auto out = std::make_shared<Source>();
  out->path = "d.safetensors";
  for (const WeightTensor& tensor : tensors) {
    out->tensors.set(key, tensor);
  }
  return out;
}

TEST(Plan, RequantizingWorksOnWhatTheOperationsBeforeHaveLeft) {
  Model model;
  std::string stem = std::string(kAttention) + "o_proj";
  model.weights.set(stem + ".weight", ones(DType::u32, {32, 4}));
  model.weights.set(stem + ".scales", ones(DType::f32, {32, 2}));
  model.weights.set(stem + ".biases", ones(DType::f32, {32, 2}));
  Operation scale = model.operation(OperationKind::scale, "*o_proj.weight");
  scale.factor = 4;
  Operation add = model.operation(OperationKind::add, "*o_proj.*");
  add.source = source_of({ones(DType::f32, {32, 32})}, stem + ".weight");
  add.alpha = 2;
  Operation without_flag = add;
  without_flag.pattern = Glob("*o_proj.weight");
  EXPECT_THAT(model.refusal(without_flag), HasSubstr("holds packed integers"));
  add.requantize = true;
  Recipe recipe;
  recipe.operations = {scale, add, scale};
  model.apply(recipe);
  // Codes were 1 everywhere: ((1 * 1 + 1) * 4 + 2) * 4 = 40 in every element.
  std::vector<float> scales = floats(model.weights.at(stem + ".scales"));
  std::vector<float> biases = floats(model.weights.at(stem + ".biases"));
  uint32_t word;
  std::memcpy(&word, model.weights.at(stem + ".weight").data, 4);
  EXPECT_NEAR(float(word & 15) * scales[0] + biases[0], 40, 1e-4);
}

TEST(Plan, FormatsWithoutBiasesAreRefusedByName) {
  Model model;
  std::string stem = std::string(kAttention) + "o_proj";
  model.weights.set(stem + ".weight", ones(DType::u32, {32, 4}));
  model.weights.set(stem + ".scales", ones(DType::u8, {32, 1}));
  EXPECT_THAT(
      model.refusal(model.operation(OperationKind::scale, "*o_proj.*")),
      HasSubstr("packed without biases"));
  Operation add = model.operation(OperationKind::add, "*o_proj.weight");
  add.source = source_of({ones(DType::f32, {32, 32})}, stem + ".weight");
  add.requantize = true;
  EXPECT_THAT(model.refusal(add), HasSubstr("requantize knows affine tensors"));
}

TEST(Plan, LogsALineAnOperation) {
  Model model;
  model.weights.set("model.norm.weight", ones(DType::bf16, {32}));
  Recipe recipe;
  recipe.operations = {model.operation(OperationKind::scale, "*norm*")};
  testing::LogCapture log;
  model.apply(recipe);
  EXPECT_THAT(
      log.infos,
      ElementsAre("surgery: scale *norm*: 1 tensor changed, 64 bytes copied"));
}

TEST(Measure, GivesFrobeniusNormsAndTheShareThatChanged) {
  std::byte* data = nullptr;
  WeightTensor before = make_weight(DType::f32, {2, 2}, &data);
  float old[] = {3, 0, 4, 0};
  std::memcpy(data, old, 16);
  WeightTensor after = make_weight(DType::f32, {2, 2}, &data);
  float now[] = {3, 0, 4, 12};
  std::memcpy(data, now, 16);
  ThreadPool pool(2);
  TensorChange change = measure_change(before, after, pool);
  EXPECT_DOUBLE_EQ(change.norm_before, 5);
  EXPECT_DOUBLE_EQ(change.norm_after, 13);
  EXPECT_DOUBLE_EQ(change.norm_of_change, 12);
  EXPECT_EQ(change.elements_changed, 1);
}

}  // namespace
}  // namespace mlxcel
