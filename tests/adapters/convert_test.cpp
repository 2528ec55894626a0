// Adapters that PEFT saved, converted and run, against PEFT's own logits; and
// what is refused.
#include "adapters/convert.h"

#include "adapters/adapter.h"
#include "adapters/peft_config.h"
#include "core/error.h"
#include "io/safetensors.h"
#include "loading/pipeline.h"
#include "support/models/sequences.h"
#include "support/models/text_case.h"
#include "support/temporary_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

namespace mlxcel {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using testing::Logits;
using ::testing::StartsWith;
using testing::TemporaryFolder;
using ::testing::ThrowsMessage;

fs::path data() {
  return fs::path(MLXCEL_TEST_DATA) / "peft";
}

struct Expected {
  std::vector<int32_t> ids;
  Logits logits;
};

Expected expected(const std::string& name) {
  WeightMap tensors = read_safetensors(data() / "expected.safetensors").tensors;
  Expected out;
  const WeightTensor& ids = tensors.at("input_ids");
  out.ids.resize(size_t(element_count(ids.shape)));
  std::memcpy(out.ids.data(), ids.data, ids.bytes);
  const WeightTensor& logits = tensors.at("logits." + name);
  for (int64_t row = 0; row < logits.dim(1); ++row) {
    std::vector<float>& values = out.logits.emplace_back(logits.dim(2));
    read_as_f32(logits, row * logits.dim(2), logits.dim(2), values.data());
  }
  return out;
}

Logits run(const std::vector<AdapterRequest>& adapters, const Expected& want) {
  LoadOptions options;
  options.model = data() / "model";
  options.backend = BackendKind::cpu;
  options.adapters = adapters;
  LoadedModel model = load_model(options);
  testing::SequenceRunner runner(*model.backend, *model.model);
  return runner.prefill(
      runner.add(std::vector<float>(adapters.size(), 1.f)), want.ids);
}

TEST(ConvertAdapter, GivesPeftsLogits) {
  Expected base = expected("base");
  EXPECT_LT(testing::max_difference(run({}, base), base.logits), 1e-4);
  for (const char* name : {"plain", "patterns", "rslora_f16"}) {
    SCOPED_TRACE(name);
    TemporaryFolder folder;
    fs::path out = folder.path() / "converted";
    convert_peft_adapter(data() / name, out);
    Expected want = expected(name);
    for (bool fuse : {true, false}) {
      EXPECT_LT(
          testing::max_difference(run({{out, 1, fuse}}, want), want.logits),
          1e-4);
    }
    // The adapters change the result by far more than the tolerance.
    EXPECT_GT(testing::max_difference(base.logits, want.logits), 0.5);
  }
}

TEST(ConvertAdapter, KeepsOneFactorInTheConfigAndFoldsTheOthers) {
  TemporaryFolder folder;
  AdapterConversion plain =
      convert_peft_adapter(data() / "plain", folder.path() / "plain");
  EXPECT_EQ(plain.pairs, 7);
  EXPECT_EQ(plain.rank, 4);
  EXPECT_EQ(plain.factor, 2.0);
  EXPECT_EQ(plain.folded, 0);

  // k_proj has rank 3, layer 1's q_proj rank 2, gate_proj alpha 10, v_proj
  // alpha 6.5; the other 5 of 12 pairs have 6 / 4.
  AdapterConversion patterns =
      convert_peft_adapter(data() / "patterns", folder.path() / "patterns");
  EXPECT_EQ(patterns.pairs, 12);
  EXPECT_EQ(patterns.factor, 1.5);
  EXPECT_EQ(patterns.folded, 7);
  EXPECT_EQ(patterns.widened, 0);

  // Factors 8 / sqrt(4) on q_proj, 8 / sqrt(3) on o_proj and 16 / sqrt(4) on
  // down_proj: the largest is kept, half of it is exact in f16.
  AdapterConversion rslora =
      convert_peft_adapter(data() / "rslora_f16", folder.path() / "rslora");
  EXPECT_EQ(rslora.pairs, 6);
  EXPECT_EQ(rslora.factor, 8.0);
  EXPECT_EQ(rslora.folded, 4);
  EXPECT_EQ(rslora.widened, 2);
  for (const AdapterPair& pair : read_adapter(folder.path() / "rslora").pairs) {
    EXPECT_EQ(pair.a.dtype, DType::f16);
    EXPECT_EQ(
        pair.b.dtype, pair.stem.ends_with("o_proj") ? DType::f32 : DType::f16);
  }
}

TEST(PeftConfig, MatchesPatternsAsPeftDoes) {
  PeftConfig config = PeftConfig::parse(
      R"({"peft_type": "LORA", "r": 8, "lora_alpha": 16,
          "rank_pattern": {"^model.layers.0.q_proj": 2, "q_proj": 4,
                           "layers\\.[12]\\..*": 16},
          "alpha_pattern": {"v_proj": 6}})",
      "f.json");
  EXPECT_EQ(config.rank_of("model.layers.0.q_proj"), 2);
  EXPECT_EQ(config.rank_of("vision.model.layers.0.q_proj"), 4);
  EXPECT_EQ(config.rank_of("model.layers.1.q_proj"), 4);  // the first match
  EXPECT_EQ(config.rank_of("model.layers.1.k_proj"), 16);
  EXPECT_EQ(config.rank_of("model.layers.3.k_proj"), 8);
  EXPECT_EQ(config.rank_of("model.layers.3.my_q_proj"), 8);  // a whole name
  EXPECT_EQ(config.factor_of("model.layers.3.k_proj"), 2.0);
  EXPECT_EQ(config.factor_of("model.layers.3.v_proj"), 0.75);
  EXPECT_EQ(
      PeftConfig::parse(
          R"({"peft_type": "LORA", "r": 16, "lora_alpha": 8,
              "use_rslora": true})",
          "f.json")
          .factor_of("q_proj"),
      2.0);
}

std::string message_of(const std::string& text) {
  try {
    PeftConfig::parse(text, "f.json");
  } catch (const AdapterError& error) {
    return error.what();
  }
  return "no error";
}

TEST(PeftConfig, RefusesByName) {
  EXPECT_EQ(
      message_of(R"({"peft_type": "LORA", "use_dora": true})"),
      "DoRA adapters are not supported: f.json has use_dora; its low-rank "
      "pair without the magnitudes is neither the base model nor the "
      "fine-tune\n  merge it into its base checkpoint with PEFT "
      "(merge_and_unload) and load the result as a model");
  EXPECT_EQ(
      message_of(R"({"peft_type": "LORA", "modules_to_save": ["lm_head"]})"),
      "cannot convert f.json: modules_to_save is set: it holds whole modules "
      "that take the place of the base model's\n  merge it into its base "
      "checkpoint with PEFT (merge_and_unload) and load the result as a model");
  EXPECT_EQ(
      message_of(R"({"peft_type": "LORA", "r": 0})"),
      "adapter config f.json has an unusable value: r is 0, and a whole number "
      "of at least 1 is needed\n  correct it, or save the adapter with PEFT "
      "again");
  EXPECT_THAT(message_of(R"({"r": 8})"), HasSubstr("no peft_type"));
  EXPECT_THAT(message_of("["), HasSubstr("not valid JSON"));
  EXPECT_THAT(message_of("[]"), HasSubstr("array"));
  // Read by one of the two and not by the other, PEFT would take the last.
  EXPECT_EQ(
      message_of(R"({"peft_type": "LORA", "r": 8, "r": 4})"),
      "cannot read adapter config f.json: key \"r\" appears twice in one "
      "object\n  save the adapter with PEFT again");
  EXPECT_THAT(
      message_of(std::string(100, '[') + std::string(100, ']')),
      HasSubstr("nested deeper than 64 levels"));
  const std::pair<const char*, const char*> cases[] = {
      {R"("peft_type": "IA3")", "peft_type \"IA3\""},
      {R"("peft_type": "ADALORA")", "peft_type \"ADALORA\""},
      {R"("peft_type": "LORA", "bias": "all")", "bias is \"all\""},
      {R"("peft_type": "LORA", "fan_in_fan_out": true)", "fan_in_fan_out"},
      {R"("peft_type": "LORA", "layer_replication": [[0, 4]])",
       "layer_replication"},
      {R"("peft_type": "LORA", "trainable_token_indices": [1])",
       "trainable_token_indices"},
      {R"("peft_type": "LORA", "target_parameters": ["experts"])",
       "target_parameters"},
      {R"("peft_type": "LORA", "lora_bias": true)", "lora_bias"},
      {R"("peft_type": "LORA", "init_lora_weights": "pissa")", "pissa"},
      {R"("peft_type": "LORA", "lora_alpha": "8")", "lora_alpha"},
      {R"("peft_type": "LORA", "lora_alpha": 1e999)", "JSON"},
      {R"("peft_type": "LORA", "use_rslora": 1)", "use_rslora"},
      {R"("peft_type": "LORA", "rank_pattern": {"(": 4})",
       "regular expression"},
      {R"("peft_type": "LORA", "rank_pattern": [4])", "rank_pattern"},
      {R"("peft_type": "LORA", "alpha_pattern": {"q": null})", "alpha_pattern"},
  };
  for (const auto& [text, part] : cases) {
    EXPECT_THAT(message_of("{" + std::string(text) + "}"), HasSubstr(part));
  }
  // Neutral values of the same switches are none.
  EXPECT_EQ(
      message_of(R"({"peft_type": "LORA", "bias": "none", "lora_bias": false,
                     "modules_to_save": null, "layer_replication": [],
                     "init_lora_weights": true, "fan_in_fan_out": false})"),
      "no error");
}

// A PEFT folder made of a valid one and one defect.
class ConvertRefusal : public ::testing::Test {
 protected:
  ConvertRefusal() {
    fs::copy(data() / "plain", peft_, fs::copy_options::recursive);
    tensors_ =
        read_safetensors(peft_ / "adapter_model.safetensors", {.mmap = false})
            .tensors;
  }
  std::string message() {
    write_safetensors(peft_ / "adapter_model.safetensors", tensors_);
    try {
      convert_peft_adapter(peft_, out_);
    } catch (const AdapterError& error) {
      EXPECT_FALSE(fs::exists(out_));
      return error.what();
    }
    return "no error";
  }

  TemporaryFolder folder_;
  fs::path peft_ = folder_.path() / "peft", out_ = folder_.path() / "out";
  WeightMap tensors_;
  const std::string q_ = "base_model.model.model.layers.0.self_attn.q_proj";
};

TEST_F(ConvertRefusal, MissingHalf) {
  tensors_.erase(q_ + ".lora_B.weight");
  EXPECT_THAT(
      message(),
      HasSubstr("the pair of model.layers.0.self_attn.q_proj lacks its half "
                "lora_B"));
}

TEST_F(ConvertRefusal, AnotherRankThanTheConfigs) {
  WeightTensor half = tensors_.at(q_ + ".lora_A.weight");
  half.shape = {2, 64};
  tensors_.set(q_ + ".lora_A.weight", half);
  EXPECT_THAT(message(), HasSubstr("rank 4"));
}

TEST_F(ConvertRefusal, OtherTensors) {
  WeightTensor half = tensors_.at(q_ + ".lora_A.weight");
  const std::pair<std::string, const char*> cases[] = {
      {"base_model.model.model.embed_tokens.lora_embedding_A",
       "pair on an embedding"},
      {q_ + ".lora_magnitude_vector", "DoRA adapters are not supported"},
      {"base_model.model.lm_head.weight", "base_model.model.lm_head.weight"},
      {"base_model.model.lm_head.base_layer.weight",
       "save_embedding_layers=False"},
      {q_ + ".lora_B.bias", "lora_B.bias"},
      {q_ + ".lora_A.default.weight", "is the second one"},
  };
  for (const auto& [key, part] : cases) {
    WeightMap before = tensors_;
    tensors_.set(key, half);
    EXPECT_THAT(message(), HasSubstr(part));
    tensors_ = before;
  }
  half.shape = {4, 8, 4};
  tensors_.set(q_ + ".lora_A.weight", half);
  EXPECT_THAT(message(), HasSubstr("[4, 8, 4]"));
}

TEST_F(ConvertRefusal, AFolderThatIsInUse) {
  fs::create_directories(out_);
  std::ofstream(out_ / "mine.txt") << "kept";
  EXPECT_THAT(
      [&] { convert_peft_adapter(peft_, out_); },
      ThrowsMessage<AdapterError>(HasSubstr(
          "cannot write to " + out_.string() +
          ": it exists and is not an empty folder")));
  EXPECT_TRUE(fs::exists(out_ / "mine.txt"));
}

TEST_F(ConvertRefusal, PickledTensors) {
  fs::rename(peft_ / "adapter_model.safetensors", peft_ / "adapter_model.bin");
  try {
    convert_peft_adapter(peft_, out_);
    FAIL();
  } catch (const AdapterError& error) {
    EXPECT_THAT(error.what(), HasSubstr("safe_serialization"));
  }
}

}  // namespace
}  // namespace mlxcel
