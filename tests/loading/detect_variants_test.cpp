// Detection beyond model_type: towers, variants, nested configs, shared names,
// and kinds that generate no text.
#include "loading/config_file.h"
#include "loading/detect.h"
#include "models/registry.h"
#include "support/fixtures.h"
#include "support/temporary_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

namespace mlxcel {
namespace {

using ::testing::HasSubstr;
using testing::TemporaryFolder;

class DetectVariants : public ::testing::Test {
 protected:
  // A folder with this config and one tensor of the name.
  Detection detect(const std::string& config, const std::string& tensor = "") {
    folder_.write("config.json", config);
    if (!tensor.empty()) {
      std::string header =
          cat(R"({")",
              tensor,
              R"(":{"dtype":"F32","shape":[1],)",
              R"("data_offsets":[0,4]}})");
      std::string file(8, '\0');
      for (int i = 0; i < 8; ++i) {
        file[size_t(i)] = char(header.size() >> (8 * i) & 255);
      }
      folder_.write("model.safetensors", file + header + std::string(4, '\0'));
    }
    config_ = read_config(folder_.path());
    return detect_model(folder_.path(), config_);
  }

  std::string refusal(
      const std::string& config, const std::string& tensor = "") {
    try {
      require_generation(detect(config, tensor), config_);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "accepted";
  }

  TemporaryFolder folder_;
  Config config_;
};

constexpr const char* kTower = "vision_tower.patch.weight";

TEST_F(DetectVariants, ATowerMakesAVisionModelOfATextModel) {
  EXPECT_EQ(detect(R"({"model_type": "gemma3"})").type, "Gemma3");
  Detection found = detect(
      R"({"model_type": "gemma3", "vision_config": {"hidden_size": 8}})",
      kTower);
  EXPECT_EQ(found.type, "Gemma3VLM");
  EXPECT_TRUE(found.vision_tower);
  EXPECT_THAT(
      refusal(
          R"({"model_type": "gemma3", "vision_config": {"hidden_size": 8}})",
          kTower),
      HasSubstr("is a vision-language model (Gemma3VLM)"));
}

TEST_F(DetectVariants, WithoutAVisionConfigATowerIsNotUsed) {
  for (const char* vision :
       {"", R"(, "vision_config": null)", R"(, "vision_config": {})"}) {
    Detection found =
        detect(cat(R"({"model_type": "gemma3")", vision, "}"), kTower);
    EXPECT_FALSE(found.vision_tower) << vision;
    EXPECT_EQ(found.type, "Gemma3") << vision;
  }
}

TEST_F(DetectVariants, LanguageModelOnlyWinsOverVisionWeights) {
  const char* config =
      R"({"model_type": "qwen2_5_vl", "vision_config": {"depth": 1},)"
      R"( "language_model_only": true})";
  for (const char* tensor : {kTower, "model.visual.patch.weight"}) {
    Detection found = detect(config, tensor);
    EXPECT_FALSE(found.vision_tower);
    EXPECT_EQ(found.vision_evidence, "language_model_only is true");
  }
  EXPECT_TRUE(
      detect(
          R"({"model_type": "qwen2_5_vl", "vision_config": {"depth": 1},)"
          R"( "language_model_only": false})",
          "model.visual.patch.weight")
          .vision_tower);
}

TEST_F(DetectVariants, WithoutVisionWeightsOnlyTextIsLoaded) {
  Detection found = detect(
      R"({"model_type": "gemma3", "vision_config": {"hidden_size": 8}})",
      "model.norm.weight");
  EXPECT_FALSE(found.vision_tower);
  EXPECT_EQ(
      found.vision_evidence, "it has vision_config, but no vision weights");
}

TEST_F(DetectVariants, NamesWhatImageRequestsGet) {
  EXPECT_EQ(
      no_vision_tower_message("some/model"),
      "model some/model was loaded without a vision tower (text-only "
      "checkpoint)");
}

TEST_F(DetectVariants, Mistral3StaysOneTypeWhateverItsTextModelIs) {
  for (const char* inner : {"mistral", "ministral3", "llama"}) {
    Detection found = detect(
        cat(R"({"model_type": "mistral3", "text_config": {"model_type": ")",
            inner,
            R"("}})"));
    EXPECT_EQ(found.type, "Mistral3");
    EXPECT_EQ(found.family->directory_route, DirectoryRoute::mistral3_dynamic);
  }
}

TEST_F(DetectVariants, TheInnerModelTypeDecidesMistral3sTextModel) {
  auto spec = [&](const char* inner) {
    Detection found = detect(
        cat(R"({"model_type": "mistral3", "text_config": {"model_type": ")",
            inner,
            R"(", "hidden_size": 32, "num_hidden_layers": 1,)"
            R"( "num_attention_heads": 4, "num_key_value_heads": 2,)"
            R"( "intermediate_size": 40, "vocab_size": 100, "head_dim": 8,)"
            R"( "rms_norm_eps": 1e-5, "max_position_embeddings": 64}})"));
    return decoder_spec(*found.family, config_);
  };
  EXPECT_EQ(
      spec("ministral3").blocks[0].attention.extras.query_scaling.length,
      16384);
  EXPECT_EQ(spec("mistral").blocks[0].attention.extras.query_scaling.length, 0);
  EXPECT_EQ(spec("llama").blocks[0].attention.extras.query_scaling.length, 0);
}

TEST_F(DetectVariants, ExpertsTellHunyuansApart) {
  auto type = [&](const char* experts) {
    return detect(cat(R"({"model_type": "hunyuan")", experts, "}")).type;
  };
  EXPECT_EQ(type(R"(, "num_experts": 4)"), "HunyuanMoe");
  EXPECT_EQ(type(R"(, "num_experts": 1)"), "HunyuanV1Dense");
  EXPECT_EQ(type(""), "HunyuanV1Dense");
  // The architecture names both.
  EXPECT_EQ(
      type(R"(, "architectures": ["HunYuanForCausalLM"])"), "HunyuanV1Dense");
}

TEST_F(DetectVariants, SharedNamesLeadToOneType) {
  EXPECT_EQ(detect(R"({"model_type": "llama"})").type, "Llama");
  EXPECT_EQ(detect(R"({"model_type": "mistral"})").type, "Llama");
  if (find_by_model_type("mamba") != nullptr) {
    EXPECT_EQ(detect(R"({"model_type": "mamba"})").type, "Mamba");
    EXPECT_EQ(detect(R"({"model_type": "falcon_mamba"})").type, "Mamba");
  }
}

TEST_F(DetectVariants, ClassificationHeadsRankWhateverTheirBackbone) {
  for (const char* name :
       {"BertForSequenceClassification",
        "ModernBertForSequenceClassification",
        "XLMRobertaForSequenceClassification"}) {
    Detection found = detect(
        cat(R"({"model_type": "bert", "architectures": [")", name, R"("]})"));
    EXPECT_EQ(found.kind, ModelKind::reranker) << name;
    EXPECT_EQ(found.type, "SequenceClassifier") << name;
  }
}

TEST_F(DetectVariants, EmbeddersAreKnownByArchitectureAndByPooling) {
  Detection found = detect(
      R"({"model_type": "gemma3_text", "architectures": ["Gemma3TextModel"]})");
  EXPECT_EQ(found.kind, ModelKind::embedding);
  EXPECT_EQ(found.type, "EmbeddingGemma");
  EXPECT_EQ(detect(R"({"model_type": "modernbert"})").type, "ModernBert");
  folder_.write(
      "modules.json", R"([{"type": "sentence_transformers.models.Pooling"}])");
  EXPECT_EQ(detect(R"({"model_type": "qwen3"})").kind, ModelKind::embedding);
}

// A generative reranker's config is that of its generator; only the user can
// tell.
TEST_F(DetectVariants, GenerativeRerankersLookLikeGenerators) {
  Detection found = detect(
      R"({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]})");
  EXPECT_EQ(found.kind, ModelKind::generation);
  EXPECT_EQ(found.type, "Qwen3");
  found = detect(R"({"model_type": "qwen3_vl"})");
  EXPECT_EQ(found.kind, ModelKind::generation);
  EXPECT_EQ(found.type, "Qwen3VL");
}

TEST_F(DetectVariants, KnownArchitecturesThatAreNotBuiltAreNamed) {
  for (const Family* family : families()) {
    if (family->decoder != nullptr || family->model_types.empty()) {
      continue;
    }
    std::string config =
        cat(R"({"model_type": ")", family->model_types[0], R"("})");
    Detection found = detect(config);
    EXPECT_EQ(found.kind, family->kind) << family->name;
    EXPECT_EQ(found.type, family->type) << family->name;
    EXPECT_THAT(
        refusal(config),
        ::testing::AnyOf(
            HasSubstr("is not supported yet"), HasSubstr("generates no text")))
        << family->name;
  }
}

// The published folders of the whole set.
std::vector<std::string> task_cases() {
  if (testing::fixture_root() == MLXCEL_TEST_FIXTURES) {
    return {};
  }
  return testing::fixture_cases("tasks", "model");
}

class DetectFixture : public ::testing::TestWithParam<std::string> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DetectFixture);

// Only an explicit switch tells a generative reranker, or an embedder without
// a pooling module, from its generator.
bool looks_like_a_generator(const std::string& name) {
  return name == "rerank_qwen3_generative" || name == "qwen3_vl_embedding";
}

TEST_P(DetectFixture, ResolvesAsStated) {
  auto folder = testing::fixture_root() / "tasks" / GetParam();
  std::ifstream stream(folder / "meta.json");
  nlohmann::json meta = nlohmann::json::parse(stream);
  auto kind = meta.at("kind").get<std::string>();
  Config config = read_config(folder / "model");
  Detection found = detect_model(folder / "model", config);
  bool generates =
      kind == "vlm" || kind == "detect" || looks_like_a_generator(GetParam());
  EXPECT_EQ(name_of(found.kind), generates ? "generation" : kind);
  if (kind == "detect") {
    EXPECT_EQ(found.vision_tower, meta.at("loads_as") != "text");
  }
  if (kind == "vlm") {
    try {
      require_generation(found, config);
      FAIL() << "accepted";
    } catch (const ConfigError& error) {
      EXPECT_THAT(
          error.what(),
          ::testing::AnyOf(
              HasSubstr(cat("vision-language model (", found.type, ")")),
              HasSubstr(cat(found.family->name, " is not supported yet"))));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, DetectFixture, ::testing::ValuesIn(task_cases()), [](auto& info) {
      return info.param;
    });

}  // namespace
}  // namespace mlxcel
