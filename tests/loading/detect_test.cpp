#include "loading/detect.h"

#include "loading/config_file.h"
#include "support/fixtures.h"
#include "support/temporary_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mlxcel {
namespace {

using testing::TemporaryFolder;

class DetectTest : public ::testing::Test {
 protected:
  Detection detect(const std::string& config) {
    folder_.write("config.json", config);
    config_ = read_config(folder_.path());
    return detect_model(folder_.path(), config_);
  }

  // The message with the folder as DIR.
  std::string message_of(const std::string& config) {
    try {
      require_generation(detect(config), config_);
    } catch (const ConfigError& error) {
      std::string text = error.what();
      std::string from = folder_.path().string();
      for (size_t at = text.find(from); at != std::string::npos;
           at = text.find(from)) {
        text.replace(at, from.size(), "DIR");
      }
      return text;
    }
    return "no error";
  }

  TemporaryFolder folder_;
  Config config_;
};

TEST_F(DetectTest, ModelTypeDecides) {
  const std::pair<const char*, const char*> cases[] = {
      {"llama", "Llama"},
      {"mistral", "Llama"},
      {"qwen2", "Qwen2"},
      {"qwen3", "Qwen3"},
      {"gemma", "Gemma"},
      {"gemma2", "Gemma2"},
      {"phi3", "Phi3"},
      {"olmo2", "Olmo2"},
  };
  for (const auto& [model_type, type] : cases) {
    Detection found = detect(cat(R"({"model_type": ")", model_type, "\"}"));
    EXPECT_EQ(found.kind, ModelKind::generation);
    ASSERT_NE(found.family, nullptr);
    EXPECT_EQ(found.family->type, type);
    EXPECT_EQ(found.model_type, model_type);
  }
}

TEST_F(DetectTest, ArchitecturesDecideWithoutModelType) {
  Detection found = detect(R"({"architectures": ["Qwen2ForCausalLM"]})");
  ASSERT_NE(found.family, nullptr);
  EXPECT_EQ(found.family->type, "Qwen2");
  EXPECT_EQ(found.model_type, "Qwen2ForCausalLM");
}

TEST_F(DetectTest, ModelTypeGoesBeforeAnUnknownArchitecture) {
  Detection found =
      detect(R"({"model_type": "llama", "architectures": ["MyOwnModel"]})");
  EXPECT_EQ(found.family->type, "Llama");
  // mistral and llama are one ModelType.
  found = detect(
      R"({"model_type": "mistral", "architectures": ["LlamaForCausalLM"]})");
  EXPECT_EQ(found.family->type, "Llama");
}

TEST_F(DetectTest, RefusesUnknownNames) {
  EXPECT_EQ(
      message_of(R"({"model_type": "starcodr2"})"),
      "DIR/config.json: unknown model_type \"starcodr2\": did you mean "
      "starcoder2?\n  "
      "`mlxcel arch` lists the supported models");
  EXPECT_EQ(
      message_of(
          R"({"model_type": "zzzzzz", "architectures": ["LlamaForCausalLM"]})"),
      "DIR/config.json: unknown model_type \"zzzzzz\": its architecture is "
      "LlamaForCausalLM\n  `mlxcel arch` lists the supported models");
  EXPECT_THAT(
      message_of(R"({"architectures": ["LamaForCausalLM"]})"),
      ::testing::StartsWith(
          "DIR/config.json: unknown architecture \"LamaForCausalLM\": "
          "\"model_type\" is missing; did you mean LlamaForCausalLM"));
  EXPECT_EQ(
      message_of(R"({"hidden_size": 4})"),
      "DIR/config.json: \"model_type\" is missing: \"architectures\" is "
      "missing "
      "too, so nothing says which model this is\n  take config.json from the "
      "model's original publisher");
  EXPECT_EQ(
      message_of(R"({"model_type": 3})"),
      "DIR/config.json: \"model_type\" has the wrong type: expected a string, "
      "found 3\n  correct the value in the file");
}

TEST_F(DetectTest, RefusesContradictions) {
  EXPECT_EQ(
      message_of(
          R"({"model_type": "llama", "architectures": ["Qwen2ForCausalLM"]})"),
      "DIR/config.json: \"model_type\" and \"architectures\" disagree: llama "
      "is "
      "Llama, Qwen2ForCausalLM is Qwen 2\n  correct the one that does not fit "
      "the weights");
  EXPECT_EQ(
      message_of(
          R"({"architectures": ["LlamaForCausalLM", "Qwen2ForCausalLM"]})"),
      "DIR/config.json: \"architectures\" is ambiguous: LlamaForCausalLM, "
      "Qwen2ForCausalLM are different families (Llama, Qwen 2)\n  keep the one "
      "that the weights belong to");
}

TEST_F(DetectTest, SaysWhatGeneratesNoText) {
  const std::string fix = "\n  give a model that generates text";
  EXPECT_EQ(
      message_of(R"({"model_type": "bert", "architectures": ["BertModel"]})"),
      "DIR is an embedding model and generates no text: model_type is bert" +
          fix);
  EXPECT_EQ(
      message_of(R"({"model_type": "bert",)"
                 R"( "architectures": ["BertForSequenceClassification"]})"),
      "DIR is a reranker model and generates no text: architectures has "
      "BertForSequenceClassification" +
          fix);
  EXPECT_EQ(
      message_of(R"({"model_type": "whisper"})"),
      "DIR is an audio model and generates no text: model_type is whisper" +
          fix);
  EXPECT_EQ(
      message_of(R"({"model_type": "yolo26"})"),
      "DIR is a detection model and generates no text: model_type is yolo26" +
          fix);
  EXPECT_EQ(
      message_of(
          R"({"model_type": "llama", "use_bidirectional_attention": true})"),
      "DIR is an embedding model and generates no text: "
      "use_bidirectional_attention is true" +
          fix);
  folder_.write(
      "modules.json",
      R"([{"type": "sentence_transformers.models.Transformer"},)"
      R"( {"type": "sentence_transformers.models.Pooling"}])");
  EXPECT_EQ(
      message_of(R"({"model_type": "qwen3"})"),
      "DIR is an embedding model and generates no text: modules.json names "
      "sentence_transformers.models.Pooling" +
          fix);
}

// Every case folder names its family, so detection is checked on all of them.
TEST_F(DetectTest, FindsTheFamilyOfEveryTextFixture) {
  int known = 0;
  for (const std::string& name : testing::fixture_cases("text", "meta.json")) {
    auto folder = testing::fixture_folder("text", name) / "model";
    Config config = read_config(folder);
    std::string model_type = config.get<std::string>("model_type");
    try {
      Detection found = detect_model(folder, config);
      EXPECT_EQ(found.kind, ModelKind::generation) << name;
      const auto& types = found.family->model_types;
      EXPECT_THAT(types, ::testing::Contains(model_type)) << name;
      ++known;
    } catch (const ConfigError& error) {
      EXPECT_THAT(
          error.what(), ::testing::HasSubstr(cat("\"", model_type, "\"")));
    }
  }
  EXPECT_GE(known, 10);
}

}  // namespace
}  // namespace mlxcel
