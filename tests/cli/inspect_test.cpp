// What is said of families and checkpoints from configs and headers alone.
#include "io/safetensors.h"
#include "models/registry.h"
#include "support/fixtures.h"
#include "support/programs/run_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>

namespace mlxcel::testing {
namespace {

using ::testing::HasSubstr;

TEST(Arch, ListsTheFamilies) {
  ProgramResult got = run_program({"arch"});
  EXPECT_EQ(got.exit_code, 0);
  EXPECT_THAT(got.out, HasSubstr("llama"));
  nlohmann::json list =
      nlohmann::json::parse(run_program({"arch", "--json"}).out);
  EXPECT_EQ(list.size(), families().size());
  EXPECT_EQ(list[0].at("model_types"), nlohmann::json({"llama"}));
  EXPECT_EQ(list[0].at("runs"), true);
  // What is known by name alone says so.
  EXPECT_THAT(got.out, HasSubstr("(not built yet)"));
  EXPECT_THAT(list.dump(), HasSubstr(R"("type":"Whisper")"));
}

TEST(Arch, SaysWhatAFolderIsAndWhereItsTensorsGo) {
  std::string model = fixture_root() / "text/qwen2_tied/model";
  ProgramResult got = run_program({"arch", model});
  EXPECT_EQ(got.exit_code, 0);
  EXPECT_THAT(got.out, HasSubstr("Qwen 2, type Qwen2"));
  EXPECT_THAT(got.out, HasSubstr("model_type qwen2"));
  nlohmann::json folder =
      nlohmann::json::parse(run_program({"arch", model, "--json"}).out);
  EXPECT_EQ(folder.at("type"), "Qwen2");
  EXPECT_EQ(folder.at("runs"), true);
  EXPECT_EQ(folder.at("vision_tower"), false);
  nlohmann::json config;
  std::ifstream(model + "/config.json") >> config;
  EXPECT_THAT(
      folder.at("tensors"),
      ::testing::Contains(nlohmann::json(
          {{"tensor", "model.layers.{}.self_attn.q_proj.weight"},
           {"count", config.at("num_hidden_layers")},
           {"role", "layers.{}.attention.q"}})));
}

TEST(Arch, SaysWhyAFolderDoesNotRun) {
  TemporaryFolder folder;
  std::ofstream(folder.path("config.json"))
      << R"({"model_type": "bert", "architectures": ["BertModel"]})";
  nlohmann::json found =
      nlohmann::json::parse(run_program({"arch", folder.path(), "--json"}).out);
  EXPECT_EQ(found.at("kind"), "embedding");
  EXPECT_EQ(found.at("kind_because"), "model_type is bert");
  EXPECT_EQ(found.at("type"), "Bert");
  EXPECT_EQ(found.at("runs"), false);
  EXPECT_THAT(
      run_program({"arch", folder.path()}).out, HasSubstr("not built yet"));
}

// What loading would refuse shows without loading.
TEST(Arch, ItAndInspectSayWhatLoadingWouldRefuse) {
  TemporaryFolder folder;
  std::filesystem::copy(
      fixture_root() / "text/qwen2_tied/model", folder.path("model"));
  std::string file = folder.path("model") + "/config.json";
  nlohmann::json config;
  std::ifstream(file) >> config;
  auto runs = [&](const char* command) {
    ProgramResult got = run_program({command, folder.path("model"), "--json"});
    EXPECT_EQ(got.exit_code, 0) << got.err;
    EXPECT_EQ(got.err, "");
    return nlohmann::json::parse(got.out).at("runs").get<bool>();
  };
  EXPECT_TRUE(runs("arch"));
  EXPECT_TRUE(runs("inspect"));
  config["intermediate_size"] = config["intermediate_size"].get<int>() + 1;
  std::ofstream(file) << config;
  EXPECT_FALSE(runs("arch"));
  EXPECT_FALSE(runs("inspect"));
  std::string refusal =
      run_program({"generate", "-m", folder.path("model"), "-p", "a"}).err;
  std::string first =
      refusal.substr(15, refusal.find('\n') - 15);  // "mlxcel: error: "
  for (const char* command : {"arch", "inspect"}) {
    EXPECT_THAT(
        run_program({command, folder.path("model")}).out, HasSubstr(first));
  }
}

TEST(Arch, PrintsTheTableOfTheDocs) {
  ProgramResult got = run_program({"arch", "--markdown"});
  EXPECT_EQ(got.exit_code, 0);
  EXPECT_EQ(got.out, families_markdown());
  EXPECT_EQ(run_program({"arch", "--markdown", "--json"}).exit_code, 2);
}

TEST(Inspect, CountsTheBytesOfTheFilesTensors) {
  // 4 bits, with other groups in some layers: a uniform model has other sizes.
  std::string model = fixture_root() / "quant/mixed_override_group_size/model";
  uint64_t expected =
      read_safetensors(model + "/model.safetensors").tensors.total_bytes();
  ProgramResult got = run_program({"inspect", "--model", model, "--json"});
  ASSERT_EQ(got.exit_code, 0) << got.err;
  nlohmann::json json = nlohmann::json::parse(got.out);
  EXPECT_EQ(json["weights_bytes"], expected);
  EXPECT_EQ(
      json["total_bytes"].get<uint64_t>(),
      json["weights_bytes"].get<uint64_t>() +
          json["kv_bytes_total"].get<uint64_t>() +
          json["activation_bytes"].get<uint64_t>() +
          json["headroom_bytes"].get<uint64_t>());
  EXPECT_GT(json["budget_bytes"].get<uint64_t>(), 0u);
  EXPECT_EQ(json["context"], 8192);
  EXPECT_THAT(run_program({"inspect", model}).out, HasSubstr("KV cache"));
}

TEST(Inspect, TheKvCacheGrowsWithContextAndBatch) {
  std::string model = fixture_root() / "text/llama_base/model";
  auto kv = [&](const char* context, const char* batch) {
    ProgramResult got = run_program(
        {"inspect",
         "--model",
         model,
         "--json",
         "-n",
         context,
         "--batch",
         batch});
    return nlohmann::json::parse(got.out)["kv_bytes_total"].get<uint64_t>();
  };
  std::ifstream file(model + "/config.json");
  nlohmann::json config = nlohmann::json::parse(file);
  uint64_t heads = config["num_key_value_heads"];
  uint64_t dim = config.value(
      "head_dim",
      config["hidden_size"].get<int>() /
          config["num_attention_heads"].get<int>());
  uint64_t layers = config["num_hidden_layers"];
  // f32 keys and values of every position.
  EXPECT_EQ(kv("640", "1"), 640 * layers * heads * dim * 2 * 4);
  EXPECT_EQ(kv("640", "3"), 3 * kv("640", "1"));
}

}  // namespace
}  // namespace mlxcel::testing
