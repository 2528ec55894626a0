#include "loading/pipeline.h"

#include "core/error.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "models/registry.h"
#include "support/fixtures.h"
#include "support/log_capture.h"
#include "support/models/sequences.h"
#include "support/models/text_case.h"
#include "support/temporary_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

namespace mlxcel {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::LogCapture;
using testing::TemporaryFolder;
using testing::TextCase;

LoadedModel load(const fs::path& folder, LoadOptions options = {}) {
  options.model = folder;
  options.backend = BackendKind::cpu;
  return load_model(options);
}

std::string message_of_load(const fs::path& folder, LoadOptions options = {}) {
  try {
    load(folder, std::move(options));
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// Largest difference of the prompt's logits from the reference.
double difference(LoadedModel& model, const TextCase& expected) {
  testing::SequenceRunner runner(*model.backend, *model.model);
  return testing::max_difference(
      runner.prefill(runner.add(), expected.input_ids), expected.logits);
}

// A copy of a fixture's checkpoint that a test may change.
class Copy {
 public:
  Copy(const std::string& set, const std::string& name)
      : expected(testing::load_text_case(set, name)) {
    for (const auto& entry : fs::directory_iterator(expected.model)) {
      fs::copy(entry.path(), path() / entry.path().filename());
    }
  }

  const fs::path& path() const {
    return folder_.path();
  }
  nlohmann::json config() const {
    return read_json_file(path() / "config.json");
  }
  void write(const std::string& name, const nlohmann::json& value) const {
    folder_.write(name, value.dump());
  }
  WeightMap weights() const {
    return read_safetensors(path() / "model.safetensors", {.mmap = false})
        .tensors;
  }
  void write(const std::string& name, const WeightMap& weights) const {
    write_safetensors(path() / name, weights);
  }

  TextCase expected;

 private:
  TemporaryFolder folder_;
};

class EnvironmentValue {
 public:
  EnvironmentValue(const char* name, const char* value) : name_(name) {
    ::setenv(name, value, 1);
  }
  ~EnvironmentValue() {
    ::unsetenv(name_);
  }

 private:
  const char* name_;
};

// Quantized cases whose whole content this version reads.
bool is_readable(const std::string& name) {
  return name.starts_with("affine_4b") || name.starts_with("affine_8b") ||
         name.starts_with("config_");
}

TEST(PipelineTest, LoadsEveryTextCaseOfItsFamilies) {
  LogCapture log;
  for (const std::string& name : testing::runnable_cases("text")) {
    TextCase expected = testing::load_text_case("text", name);
    LoadedModel model = load(expected.model);
    EXPECT_LE(
        difference(model, expected),
        expected.meta["abs_tolerance"].get<double>())
        << name;
    if (model.model->context_traits().whole_sequence) {
      EXPECT_THAT(log.warnings, ElementsAre(HasSubstr("decay"))) << name;
      log.warnings.clear();
    }
    EXPECT_THAT(log.warnings, ElementsAre()) << name;
  }
}

TEST(PipelineTest, LoadsEveryReadableQuantizedCase) {
  LogCapture log;
  int count = 0;
  for (const std::string& name : testing::runnable_cases("quant")) {
    if (is_readable(name)) {
      TextCase expected = testing::load_text_case("quant", name);
      LoadedModel model = load(expected.model);
      EXPECT_LE(
          difference(model, expected), expected.meta["atol"].get<double>())
          << name;
      ++count;
    }
  }
  EXPECT_GE(count, 10);
}

TEST(PipelineTest, RefusesEveryBadQuantizedCase) {
  for (const std::string& name :
       testing::fixture_cases("quant/bad", "expected_error.json")) {
    fs::path folder = testing::fixture_root() / "quant/bad" / name;
    nlohmann::json expected = read_json_file(folder / "expected_error.json");
    if (name == "one_bit_moe_stack") {
      continue;  // one bit throughout: its embedding is refused first
    }
    std::string message = message_of_load(folder);
    for (const auto& part : expected["must_mention"]) {
      EXPECT_THAT(message, HasSubstr(part.get<std::string>())) << name;
    }
  }
}

TEST(PipelineTest, ReportsWhatItLoaded) {
  LogCapture log;
  TextCase expected = testing::load_text_case("text", "llama_base");
  std::vector<std::string> phases;
  LoadOptions options;
  options.progress = [&](std::string_view phase, double done) {
    EXPECT_GE(done, 0);
    EXPECT_LE(done, 1);
    if (phases.empty() || phases.back() != phase) {
      phases.emplace_back(phase);
    }
  };
  LoadedModel model = load(expected.model / "config.json", options);
  EXPECT_EQ(model.folder, expected.model);
  EXPECT_EQ(model.family->type, "Llama");
  EXPECT_EQ(model.activation_dtype, DType::f32);
  EXPECT_EQ(
      model.weight_bytes,
      read_safetensors(expected.model / "model.safetensors")
          .tensors.total_bytes());
  EXPECT_EQ(
      model.max_positions,
      read_json_file(expected.model / "config.json")["max_position_embeddings"]
          .get<int64_t>());
  EXPECT_GT(model.seconds, 0);
  EXPECT_THAT(
      phases,
      ElementsAre("detect", "weights", "compose", "build", "materialize"));
  EXPECT_THAT(
      log.infos, ElementsAre(::testing::MatchesRegex("Model loaded in .* s")));
}

TEST(PipelineTest, PrintsPhasesWhenAsked) {
  LogCapture log;
  EnvironmentValue profile("MLXCEL_PROFILE_TTFT", "1");
  EnvironmentValue lazy("MLXCEL_WEIGHT_MATERIALIZATION", "lazy");
  load(testing::load_text_case("text", "llama_base").model);
  ASSERT_EQ(log.infos.size(), 6u);
  const char* phases[] = {"detect", "weights", "compose", "build", "total"};
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_THAT(
        log.infos[i],
        ::testing::MatchesRegex(
            cat("\\[TTFT\\] load ", phases[i], " [0-9.]+ ms")));
  }
}

TEST(PipelineTest, RefusesUnknownSettings) {
  fs::path folder = testing::load_text_case("text", "llama_base").model;
  {
    EnvironmentValue value("MLXCEL_WEIGHT_MATERIALIZATION", "often");
    EXPECT_EQ(
        message_of_load(folder),
        "MLXCEL_WEIGHT_MATERIALIZATION is \"often\"\n  known values are eager "
        "and lazy");
  }
  LoadOptions options;
  options.dtype = DType::u8;
  EXPECT_EQ(
      message_of_load(folder, options),
      "activations cannot be U8\n  choose f32, f16 or bf16");
}

TEST(PipelineTest, ActivationsFollowTheEmbedding) {
  LogCapture log;
  auto dtype_of = [](const char* set, const char* name) {
    return load(testing::load_text_case(set, name).model).activation_dtype;
  };
  EXPECT_EQ(dtype_of("text", "llama_bf16"), DType::bf16);
  EXPECT_EQ(dtype_of("quant", "affine_4b_g64_bf16"), DType::bf16);
  EXPECT_EQ(dtype_of("quant", "affine_4b_g32_f16"), DType::f16);
  EXPECT_EQ(dtype_of("quant", "affine_4b_g64"), DType::f32);
  LoadOptions options;
  options.dtype = DType::f32;
  EXPECT_EQ(
      load(testing::load_text_case("text", "llama_bf16").model, options)
          .activation_dtype,
      DType::f32);
}

TEST(PipelineTest, ReadsTheOtherQuantizationKey) {
  LogCapture log;
  Copy copy("quant", "affine_4b_g128");
  nlohmann::json config = copy.config();
  nlohmann::json table = config["quantization"];
  config.erase("quantization");
  config["quantization_config"] = table;
  copy.write("config.json", config);
  LoadedModel model = load(copy.path());
  EXPECT_LE(
      difference(model, copy.expected),
      copy.expected.meta["atol"].get<double>());
}

TEST(PipelineTest, ReadsTheFolderWhenTheIndexIsStale) {
  LogCapture log;
  Copy copy("text", "llama_base");
  nlohmann::json weight_map;
  for (const std::string& key : copy.weights().keys()) {
    weight_map[key] = "model-00001-of-00003.safetensors";
  }
  copy.write("model.safetensors.index.json", {{"weight_map", weight_map}});
  LoadedModel model = load(copy.path());
  EXPECT_LE(difference(model, copy.expected), 2e-3);
  EXPECT_THAT(
      log.warnings,
      ElementsAre(HasSubstr("names absent files "
                            "(model-00001-of-00003.safetensors)")));
  fs::remove(copy.path() / "model.safetensors");
  EXPECT_THAT(
      message_of_load(copy.path()),
      HasSubstr("names model-00001-of-00003.safetensors, but"));
}

TEST(PipelineTest, LoadsATiedModelWithAndWithoutAStoredHead) {
  for (const auto& [set, name] :
       {std::pair{"text", "qwen2_tied"}, {"quant", "affine_4b_g64_tied"}}) {
    LogCapture log;
    Copy copy(set, name);
    LoadedModel without = load(copy.path());
    double expected = difference(without, copy.expected);
    const nlohmann::json& meta = copy.expected.meta;
    EXPECT_LE(
        expected,
        meta[meta.contains("atol") ? "atol" : "abs_tolerance"].get<double>());
    WeightMap weights = copy.weights();
    size_t file_bytes = weights.total_bytes();
    EXPECT_EQ(without.weight_bytes, file_bytes);
    for (const char* part : {"weight", "scales", "biases"}) {
      std::string key = cat("model.embed_tokens.", part);
      if (weights.contains(key)) {
        weights.set(cat("lm_head.", part), weights.at(key));
      }
    }
    copy.write("model.safetensors", weights);
    LoadedModel with = load(copy.path());
    EXPECT_EQ(difference(with, copy.expected), expected);
    EXPECT_GT(with.weight_bytes, file_bytes);
    EXPECT_THAT(log.warnings, ElementsAre());
  }
}

TEST(PipelineTest, WarnsWhenATiedHeadDiffers) {
  LogCapture log;
  Copy copy("text", "qwen2_tied");
  WeightMap weights = copy.weights();
  const WeightTensor& table = weights.at("model.embed_tokens.weight");
  std::byte* data = nullptr;
  WeightTensor zeros = make_weight(table.dtype, table.shape, &data);
  std::fill(data, data + zeros.bytes, std::byte(0));
  weights.set("lm_head.weight", zeros);
  copy.write("model.safetensors", weights);
  LoadedModel model = load(copy.path());
  EXPECT_THAT(
      log.warnings,
      ElementsAre(
          "tie_word_embeddings is true, but \"lm_head.weight\" is "
          "stored and differs from \"model.embed_tokens.weight\"; using "
          "the stored head"));
  // The stored head, zeros, is what counts.
  EXPECT_GT(difference(model, copy.expected), 0.5);
}

// The table is the head only where the config says so, whatever the family.
TEST(PipelineTest, RefusesAnUntiedModelWithoutItsHead) {
  for (const char* name : {"qwen2_tied", "exaone4_full", "recurrent_gemma"}) {
    Copy copy("text", name);
    nlohmann::json config = copy.config();
    config["tie_word_embeddings"] = false;
    copy.write("config.json", config);
    EXPECT_THAT(
        message_of_load(copy.path()),
        ::testing::AllOf(
            HasSubstr("no tensor for head"), HasSubstr("tie_word_embeddings")))
        << name;
  }
}

TEST(PipelineTest, RefusesTensorsThatNobodyClaims) {
  Copy copy("text", "llama_base");
  WeightMap weights = copy.weights();
  std::byte* data = nullptr;
  weights.set(
      "model.layers.0.extra.weight", make_weight(DType::f32, {2}, &data));
  copy.write("model.safetensors", weights);
  EXPECT_THAT(
      message_of_load(copy.path()), HasSubstr("model.layers.0.extra.weight"));
}

TEST(PipelineTest, LeavesOutATowerThatTheConfigDeclines) {
  LogCapture log;
  Copy copy("text", "llama_base");
  WeightMap weights = copy.weights();
  std::byte* data = nullptr;
  weights.set("vision_tower.patch.weight", make_weight(DType::f32, {2}, &data));
  copy.write("model.safetensors", weights);
  nlohmann::json config = copy.config();
  config["vision_config"] = {{"depth", 1}};
  copy.write("config.json", config);
  EXPECT_THAT(
      message_of_load(copy.path()), HasSubstr("is a vision-language model"));
  config["language_model_only"] = true;
  copy.write("config.json", config);
  LoadedModel model = load(copy.path());
  EXPECT_LE(difference(model, copy.expected), 2e-3);
}

TEST(PipelineTest, NamesMissingTensors) {
  Copy copy("text", "llama_base");
  WeightMap weights = copy.weights();
  weights.erase("model.layers.1.mlp.down_proj.weight");
  copy.write("model.safetensors", weights);
  EXPECT_THAT(
      message_of_load(copy.path()),
      HasSubstr("model.layers.1.mlp.down_proj.weight"));
}

TEST(PipelineTest, NamesDamagedFiles) {
  Copy copy("text", "llama_base");
  fs::path file = copy.path() / "model.safetensors";
  fs::resize_file(file, fs::file_size(file) - 4);
  EXPECT_THAT(
      message_of_load(copy.path()),
      ::testing::StartsWith(cat("cannot read ", file.string(), ": tensor \"")));
}

TEST(PipelineTest, ReadsDoubleWeights) {
  LogCapture log;
  Copy copy("text", "llama_base");
  WeightMap weights = copy.weights();
  for (const std::string& key : weights.keys()) {
    const WeightTensor& tensor = weights.at(key);
    int64_t count = element_count(tensor.shape);
    std::vector<float> values(static_cast<size_t>(count));
    read_as_f32(tensor, values.data());
    std::byte* data = nullptr;
    WeightTensor wide = make_weight(DType::f64, tensor.shape, &data);
    std::copy(values.begin(), values.end(), reinterpret_cast<double*>(data));
    weights.set(key, wide);
  }
  copy.write("model.safetensors", weights);
  LoadedModel model = load(copy.path());
  EXPECT_LE(difference(model, copy.expected), 2e-3);
}

}  // namespace
}  // namespace mlxcel
