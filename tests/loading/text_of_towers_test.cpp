// The text models of checkpoints for text and images, against the reference
// logits of a text alone. Only the whole fixture set has such checkpoints.
#include "io/safetensors.h"
#include "loading/pipeline.h"
#include "models/registry.h"
#include "support/fixtures.h"
#include "support/models/sequences.h"
#include "support/models/text_case.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

namespace mlxcel {
namespace {

namespace fs = std::filesystem;

nlohmann::json json_of(const fs::path& path) {
  std::ifstream stream(path);
  return nlohmann::json::parse(stream);
}

fs::path folder_of(const std::string& name) {
  return testing::fixture_root() / "tasks" / name;
}

std::vector<std::string> cases() {
  std::vector<std::string> out;
  if (testing::fixture_root() == MLXCEL_TEST_FIXTURES) {
    return out;
  }
  for (const std::string& name : testing::fixture_cases("tasks", "model")) {
    fs::path expected = folder_of(name) / "expected.safetensors";
    const Family* family = find_by_model_type(
        json_of(folder_of(name) / "model/config.json").value("model_type", ""));
    if (family != nullptr && family->decoder != nullptr &&
        fs::exists(expected) &&
        read_safetensors(expected).tensors.contains("out.text_logits")) {
      out.push_back(name);
    }
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

// What keeps a tower out.
enum class Asked { by_switch, by_no_vision_config };

void copy_text_model(
    const fs::path& model, Asked asked, const testing::TemporaryFolder& to) {
  nlohmann::json config = json_of(model / "config.json");
  if (asked == Asked::by_switch) {
    config["language_model_only"] = true;
  } else {
    config.erase("vision_config");
  }
  to.write("config.json", config.dump());
  for (const auto& file : fs::directory_iterator(model)) {
    if (file.path().extension() == ".safetensors") {
      fs::create_symlink(
          fs::absolute(file.path()), to.path() / file.path().filename());
    }
  }
}

class TextOfTower : public ::testing::TestWithParam<std::string> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TextOfTower);

TEST_P(TextOfTower, MatchesTheReference) {
  fs::path folder = folder_of(GetParam());
  WeightMap expected =
      read_safetensors(folder / "expected.safetensors").tensors;
  std::vector<int32_t> ids = values<int32_t>(expected, "in.text_ids");
  std::vector<float> flat = values<float>(expected, "out.text_logits");
  testing::Logits logits;
  size_t vocab = flat.size() / ids.size();
  for (size_t row = 0; row < ids.size(); ++row) {
    auto begin = flat.begin() + int64_t(row * vocab);
    logits.emplace_back(begin, begin + int64_t(vocab));
  }
  double tolerance =
      json_of(folder / "meta.json").at("tolerance_abs").get<double>();
  for (Asked asked : {Asked::by_switch, Asked::by_no_vision_config}) {
    testing::TemporaryFolder text;
    copy_text_model(folder / "model", asked, text);
    for (BackendKind backend : {BackendKind::cpu, BackendKind::graph}) {
      LoadOptions options;
      options.model = text.path();
      options.dtype = DType::f32;
      options.backend = backend;
      LoadedModel loaded = load_model(options);
      testing::SequenceRunner runner(*loaded.backend, *loaded.model);
      for (int chunk : {0, 1, 4}) {
        EXPECT_LE(
            testing::max_difference(
                runner.prefill(runner.add(), ids, chunk), logits),
            tolerance)
            << int(backend) << ", in pieces of " << chunk;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, TextOfTower, ::testing::ValuesIn(cases()), [](const auto& test) {
      return test.param;
    });

}  // namespace
}  // namespace mlxcel
