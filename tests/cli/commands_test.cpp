#include "cli/command.h"
#include "io/safetensors.h"
#include "support/fixtures.h"
#include "support/programs/run_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace mlxcel::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

template <typename T>
void set_tensor(
    WeightMap& map,
    const std::string& key,
    DType dtype,
    Shape shape,
    const std::vector<T>& values) {
  std::byte* data = nullptr;
  WeightTensor tensor = make_weight(dtype, std::move(shape), &data);
  std::memcpy(data, values.data(), tensor.bytes);
  map.set(key, tensor);
}

template <typename T>
std::vector<T> values_of(const WeightMap& map, const std::string& key) {
  const WeightTensor& tensor = map.at(key);
  std::vector<T> values(tensor.bytes / sizeof(T));
  std::memcpy(values.data(), tensor.data, tensor.bytes);
  return values;
}

TEST(Program, HelpListsEveryCommandAndEveryCommandHasHelp) {
  ProgramResult help = run_program({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  for (const std::string& name : cli::command_names()) {
    EXPECT_THAT(help.out, HasSubstr("  " + name + " "));
    ProgramResult own = run_program({name, "--help"});
    EXPECT_EQ(own.exit_code, 0) << name;
    EXPECT_THAT(own.out, HasSubstr("Usage: mlxcel " + name)) << name;
    EXPECT_EQ(own.err, "") << name;
  }
  EXPECT_EQ(run_program({}).exit_code, 2);
  EXPECT_THAT(run_program({"--version"}).out, StartsWith("mlxcel "));
}

TEST(Program, UnknownCommandsListNearNames) {
  ProgramResult got = run_program({"generat"});
  EXPECT_EQ(got.exit_code, 2);
  EXPECT_EQ(got.out, "");
  EXPECT_EQ(
      got.err,
      "mlxcel: error: unknown command generat: did you mean generate?\n"
      "  see mlxcel --help for the commands\n");
}

TEST(Program, ABeginningOfACommandSuggestsIt) {
  ProgramResult got = run_program({"gen"});
  EXPECT_EQ(got.exit_code, 2);
  EXPECT_THAT(
      got.err, HasSubstr("unknown command gen: did you mean generate?"));
}

TEST(Program, CommandsOfTheWiderProductAreRefusedByName) {
  for (const char* name :
       {"prepare-external-ple",
        "prepare-expert-stream",
        "embed",
        "rerank",
        "detect",
        "list",
        "rm",
        "download",
        "tune",
        "split-mtp"}) {
    ProgramResult got = run_program({name, "x"});
    EXPECT_EQ(got.exit_code, 2) << name;
    EXPECT_EQ(got.out, "") << name;
    EXPECT_THAT(
        got.err,
        StartsWith(
            "mlxcel: error: mlxcel " + std::string(name) +
            " is not built yet: this version has no "));
  }
}

TEST(Environment, WhatIsNotBuiltIsRefusedUnlessItChangesNothing) {
  TemporaryFolder folder;
  write_chain_model(folder.path("model"));
  auto answer = [&](std::vector<std::string> environment) {
    return run_program(
        {"generate",
         "-m",
         folder.path("model"),
         "-p",
         ">",
         "--max-tokens",
         "2"},
        {.environment = std::move(environment)});
  };
  ProgramResult plain = answer({});
  ASSERT_EQ(plain.exit_code, 0) << plain.err;
  ProgramResult neutral = answer(
      {"MLXCEL_PLE_IO=mmap",
       "MLXCEL_EXPERT_STREAM=auto",
       "MLXCEL_CACHE_CLEAR_INTERVAL=256",
       "MLXCEL_LOOP_DETECTION=0",
       "MLXCEL_MEMORY_LIMIT=",
       "AIP_HTTP_PORT=8080"});  // a server's
  EXPECT_EQ(neutral.exit_code, 0) << neutral.err;
  EXPECT_EQ(neutral.out, plain.out);
  for (const char* variable :
       {"MLXCEL_PLE_IO=direct",
        "MLXCEL_PLE_CACHE_BYTES=1024",
        "MLXCEL_EXPERT_STREAM=1",
        "MLXCEL_EXPERT_ARENA_BYTES=1024",
        "MLXCEL_MEMORY_LIMIT=1",
        "MLXCEL_LOOP_DETECTION=1"}) {
    ProgramResult got = answer({variable});
    EXPECT_EQ(got.exit_code, 2) << variable;
    EXPECT_EQ(got.out, "") << variable;
    EXPECT_THAT(
        got.err,
        StartsWith(
            "mlxcel: error: " + std::string(variable) +
            " in the environment is not built yet: this version has no "));
  }
  EXPECT_EQ(
      answer({"MLXCEL_CUDA_PINNED_LOAD=0"}).err.find("PINNED"),
      std::string::npos);
  ProgramResult warned = answer({"MLXCEL_CUDA_PINNED_LOAD=1"});
  EXPECT_EQ(warned.out, plain.out);
  EXPECT_THAT(warned.err, HasSubstr("MLXCEL_CUDA_PINNED_LOAD=1 has no effect"));
  ProgramResult served = run_program(
      {"serve", "-m", folder.path("model")},
      {.environment = {"AIP_HTTP_PORT=8080"}});
  EXPECT_EQ(served.exit_code, 2);
  EXPECT_THAT(served.err, HasSubstr("AIP_HTTP_PORT=8080"));
}

TEST(Environment, TheDeviceIsTakenWithoutABackend) {
  TemporaryFolder folder;
  write_chain_model(folder.path("model"));
  auto answer = [&](const char* device, std::vector<std::string> more) {
    std::vector<std::string> arguments = {
        "generate", "-m", folder.path("model"), "-p", ">", "--max-tokens", "2"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_program(arguments, {.environment = {device}});
  };
  EXPECT_EQ(answer("MLXCEL_DEVICE=cpu", {}).exit_code, 0);
  EXPECT_EQ(answer("MLXCEL_DEVICE=auto", {}).exit_code, 0);
  ProgramResult wrong = answer("MLXCEL_DEVICE=tpu", {});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("MLXCEL_DEVICE is 'tpu'"));
  EXPECT_THAT(wrong.err, HasSubstr("auto, cpu or gpu"));
  // The option goes before the variable.
  EXPECT_EQ(answer("MLXCEL_DEVICE=tpu", {"--backend", "cpu"}).exit_code, 0);
}

TEST(Completions, ExistForEachShellAndNameTheFlags) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    ProgramResult got = run_program({"completions", shell});
    EXPECT_EQ(got.exit_code, 0);
    EXPECT_THAT(got.out, HasSubstr("max-tokens"));
    EXPECT_THAT(got.out, HasSubstr("perplexity"));
    EXPECT_THAT(got.out, ::testing::Not(HasSubstr("draft-model")));
  }
  EXPECT_EQ(run_program({"completions", "tcsh"}).exit_code, 2);
}

TEST(Program, PathsThatCannotBeLookedAtAreNamed) {
  TemporaryFolder folder;
  std::filesystem::create_symlink(
      "config.json", folder.path("config.json"));  // leads to itself
  ProgramResult got = run_program({"inspect", "--model", folder.path()});
  EXPECT_EQ(got.exit_code, 1);
  EXPECT_EQ(
      got.err,
      "mlxcel: error: cannot use " + folder.path("config.json") +
          ": Too many levels of symbolic links\n"
          "  check the path and its permissions\n");
}

TEST(Perplexity, RefusesAFolderAsText) {
  TemporaryFolder folder;
  ProgramResult got = run_program({"perplexity", "--text", folder.path()});
  EXPECT_EQ(got.exit_code, 2);
  EXPECT_THAT(got.err, HasSubstr("--text " + folder.path() + " is a folder"));
}

TEST(Perplexity, RefusesAWindowOfOne) {
  TemporaryFolder folder;
  std::ofstream(folder.path("text")) << "Some text.";
  for (const char* one : {"1", "01"}) {
    ProgramResult got = run_program(
        {"perplexity", "--text", folder.path("text"), "--ctx", one});
    EXPECT_EQ(got.exit_code, 2);
    EXPECT_THAT(got.err, HasSubstr("a window of one token predicts nothing"));
  }
}

struct LogitsTest : ::testing::Test {
  TemporaryFolder folder;
  std::string model = fixture_root() / "text/llama_base/model";

  ProgramResult run(
      const WeightMap& input, std::vector<std::string> more = {}) {
    write_safetensors(folder.path("in.safetensors"), input);
    std::vector<std::string> arguments = {
        "logits",
        "--model",
        model,
        "--input",
        folder.path("in.safetensors"),
        "--output",
        folder.path("out.safetensors")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_program(arguments);
  }
  WeightMap output() {
    return read_safetensors(folder.path("out.safetensors")).tensors;
  }
};

TEST_F(LogitsTest, EqualsTheReference) {
  WeightMap expected =
      read_safetensors(fixture_root() / "text/llama_base/expected.safetensors")
          .tensors;
  std::vector<int32_t> ids;
  const WeightTensor& given = expected.at("input_ids");
  if (given.dtype == DType::i64) {
    for (int64_t id : values_of<int64_t>(expected, "input_ids")) {
      ids.push_back(int32_t(id));
    }
  } else {
    ids = values_of<int32_t>(expected, "input_ids");
  }
  WeightMap input;
  set_tensor(input, "input_ids", DType::i32, {1, int64_t(ids.size())}, ids);
  ProgramResult got = run(input, {"--max-tokens", "4"});
  ASSERT_EQ(got.exit_code, 0) << got.err;
  WeightMap out = output();
  std::vector<float> want = values_of<float>(expected, "logits");
  std::vector<float> have = values_of<float>(out, "logits");
  ASSERT_EQ(have.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(have[i], want[i], 2e-3) << i;
  }
  EXPECT_EQ(out.at("greedy").shape, (Shape{1, 4}));
}

TEST_F(LogitsTest, PaddedRowsAndChunksDoNotChangeTheResult) {
  WeightMap input;
  set_tensor<int32_t>(
      input,
      "input_ids",
      DType::i32,
      {2, 6},
      {5, 6, 7, 8, 9, 10, 5, 6, 7, 0, 0, 0});
  set_tensor<int32_t>(input, "lengths", DType::i32, {2}, {6, 3});
  ASSERT_EQ(run(input).exit_code, 0);
  WeightMap both = output();
  size_t vocab = size_t(both.at("logits").dim(2));
  std::vector<float> whole = values_of<float>(both, "logits");
  for (size_t i = 0; i < 3 * vocab; ++i) {
    ASSERT_EQ(whole[i], whole[6 * vocab + i]) << i;  // the common beginning
    ASSERT_EQ(whole[9 * vocab + i], 0) << i;         // padding
  }
  ASSERT_EQ(run(input, {"--prefill-chunk", "2"}).exit_code, 0);
  EXPECT_EQ(values_of<float>(output(), "logits"), whole);
}

TEST_F(LogitsTest, DamagedWeightsAreAFailure) {
  std::filesystem::copy(model, folder.path("model"));
  model = folder.path("model");
  WeightMap weights = read_safetensors(model + "/model.safetensors").tensors;
  WeightMap damaged;
  for (const auto& [key, tensor] : weights) {
    std::byte* data = nullptr;
    WeightTensor copy = make_weight(tensor.dtype, tensor.shape, &data);
    std::memcpy(data, tensor.data, tensor.bytes);
    if (key == "model.norm.weight") {
      std::memset(data, 0xFF, tensor.bytes);  // NaN in every float type
    }
    damaged.set(key, copy);
  }
  std::filesystem::remove(model + "/model.safetensors");
  write_safetensors(model + "/model.safetensors", damaged);
  WeightMap input;
  set_tensor<int32_t>(input, "input_ids", DType::i32, {1, 3}, {5, 6, 7});
  ProgramResult got = run(input, {"--max-tokens", "120"});
  EXPECT_EQ(got.exit_code, 1);
  EXPECT_THAT(got.err, HasSubstr("no token can be chosen"));
  EXPECT_FALSE(std::filesystem::exists(folder.path("out.safetensors")));
}

TEST_F(LogitsTest, RefusesInputsByName) {
  WeightMap none;
  set_tensor<int32_t>(none, "ids", DType::i32, {1, 1}, {1});
  ProgramResult got = run(none);
  EXPECT_EQ(got.exit_code, 1);
  EXPECT_THAT(got.err, HasSubstr("no tensor input_ids"));

  WeightMap wrong;
  set_tensor<int64_t>(wrong, "input_ids", DType::i64, {1, 1}, {1});
  EXPECT_THAT(run(wrong).err, HasSubstr("wrong input tensor input_ids"));

  WeightMap outside;
  set_tensor<int32_t>(outside, "input_ids", DType::i32, {1, 1}, {1 << 30});
  EXPECT_THAT(run(outside).err, HasSubstr("outside the vocabulary"));

  WeightMap longer;  // the context of llama_base is 128
  set_tensor<int32_t>(
      longer, "input_ids", DType::i32, {1, 129}, std::vector<int32_t>(129, 1));
  EXPECT_THAT(run(longer).err, HasSubstr("longer than the context"));
  WeightMap full;
  set_tensor<int32_t>(
      full, "input_ids", DType::i32, {1, 128}, std::vector<int32_t>(128, 1));
  EXPECT_THAT(
      run(full, {"--max-tokens", "1"}).err,
      HasSubstr("128 tokens and 1 to come, the context 128"));

  WeightMap lengths;
  set_tensor<int32_t>(lengths, "input_ids", DType::i32, {1, 2}, {1, 2});
  set_tensor<int32_t>(lengths, "lengths", DType::i32, {1}, {3});
  EXPECT_THAT(run(lengths).err, HasSubstr("lengths[0]"));

  WeightMap scales;
  set_tensor<int32_t>(scales, "input_ids", DType::i32, {1, 2}, {1, 2});
  set_tensor<float>(scales, "adapter_scales", DType::f32, {1, 1}, {1});
  EXPECT_THAT(run(scales).err, HasSubstr("adapter_scales"));
  EXPECT_FALSE(std::filesystem::exists(folder.path("out.safetensors")));
}

TEST(Perplexity, ScoresATextAndComparesItWithItself) {
  TemporaryFolder folder;
  std::string model = fixture_root() / "lora/bases/llama_untied_f32";
  std::ofstream(folder.path("text")) << "Some text to score, long enough.";
  std::vector<std::string> base = {
      "perplexity",
      "--model",
      model,
      "--text",
      folder.path("text"),
      "--json",
      "--ctx",
      "16"};
  std::vector<std::string> save = base, compare = base;
  save.insert(save.end(), {"--save-logits", folder.path("base")});
  compare.insert(compare.end(), {"--kl-base", folder.path("base")});
  ProgramResult got = run_program(save);
  ASSERT_EQ(got.exit_code, 0) << got.err;
  nlohmann::json first = nlohmann::json::parse(got.out);
  EXPECT_EQ(first["tokens"], 32);
  EXPECT_EQ(first["predicted"], 30);
  EXPECT_GT(first["perplexity"].get<double>(), 1);
  got = run_program(compare);
  ASSERT_EQ(got.exit_code, 0) << got.err;
  nlohmann::json second = nlohmann::json::parse(got.out);
  EXPECT_NEAR(second["mean_kl"].get<double>(), 0, 1e-12);
  EXPECT_EQ(second["top1_agreement"], 1);

  compare[compare.size() - 3] = "8";
  got = run_program(compare);
  EXPECT_EQ(got.exit_code, 1);
  EXPECT_THAT(got.err, HasSubstr("saved logits of another text"));
}

TEST(Bench, ReportsSpeedAsJson) {
  std::string model = fixture_root() / "text/llama_base/model";
  ProgramResult got = run_program(
      {"bench",
       "--model",
       model,
       "--prompt-tokens",
       "8",
       "--gen-tokens",
       "4",
       "--repeat",
       "2",
       "--batch",
       "2",
       "--json"});
  ASSERT_EQ(got.exit_code, 0) << got.err;
  nlohmann::json json = nlohmann::json::parse(got.out);
  EXPECT_GT(json["prefill_tokens_per_second"].get<double>(), 0);
  EXPECT_EQ(json["decode_samples"].size(), 2u);
  EXPECT_GT(json["read_bandwidth_gb_per_second"].get<double>(), 0);
}

TEST(Bench, RefusesShapesItCannotMake) {
  ProgramResult got = run_program({"bench", "--shape", "2b"});
  EXPECT_EQ(got.exit_code, 2);
  EXPECT_THAT(got.err, StartsWith("mlxcel: error: unknown shape 2b"));
  EXPECT_THAT(got.err, HasSubstr("known: 1b, 8b, mamba2, moe, latent, delta"));
  EXPECT_EQ(
      run_program({"bench", "--shape", "1b", "--bits", "5"}).exit_code, 2);
  EXPECT_EQ(run_program({"bench", "--save", "x"}).exit_code, 2);
}

// The name of a scratch folder may be taken; what is there is someone else's.
TEST(Bench, LeavesWhatItDidNotMake) {
  TemporaryFolder folder;
  std::ofstream(folder.path("shape.json")) << R"({
      "model_type": "llama", "hidden_size": 64, "intermediate_size": 64,
      "num_hidden_layers": 1, "num_attention_heads": 2,
      "num_key_value_heads": 2, "vocab_size": 128,
      "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
      "rope_theta": 10000.0})";
  std::filesystem::create_directory(folder.path("scratch"));
  std::string line =
      "TMPDIR=" + folder.path("scratch") +
      "; export TMPDIR; taken=$TMPDIR/mlxcel-bench-$$; mkdir $taken; "
      "echo kept > $taken/file; exec '" MLXCEL_TEST_PROGRAM "' bench --shape " +
      folder.path("shape.json") +
      " --prompt-tokens 1 --gen-tokens 1 --repeat 1 > /dev/null 2>&1";
  EXPECT_EQ(std::system(line.c_str()), 0);
  std::vector<std::string> left;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(folder.path("scratch"))) {
    left.push_back(entry.path().filename());
  }
  EXPECT_THAT(
      left, ::testing::ElementsAre(StartsWith("mlxcel-bench-"), "file"));
}

// Every tensor of the family is made, under a name that loading finds.
TEST(Bench, MakesCheckpointsOfOtherShapes) {
  const nlohmann::json dense = {
      {"hidden_size", 64},
      {"intermediate_size", 64},
      {"num_hidden_layers", 2},
      {"num_attention_heads", 2},
      {"num_key_value_heads", 2},
      {"vocab_size", 128},
      {"max_position_embeddings", 64},
      {"rms_norm_eps", 1e-6},
      {"rope_theta", 10000.0},
      {"moe_intermediate_size", 64},
      {"num_experts_per_tok", 2}};
  nlohmann::json moe = dense, latent = dense, delta = dense;
  moe.update(
      {{"model_type", "qwen3_moe"}, {"head_dim", 64}, {"num_experts", 4}});
  latent.update(
      {{"model_type", "deepseek_v3"},
       {"kv_lora_rank", 64},
       {"q_lora_rank", 64},
       {"qk_nope_head_dim", 64},
       {"qk_rope_head_dim", 32},
       {"v_head_dim", 64},
       {"n_routed_experts", 4},
       {"n_shared_experts", 1},
       {"n_group", 2},
       {"topk_group", 1},
       {"first_k_dense_replace", 1}});
  delta.update(
      {{"model_type", "qwen3_next"},
       {"head_dim", 64},
       {"full_attention_interval", 2},
       {"linear_conv_kernel_dim", 4},
       {"linear_key_head_dim", 64},
       {"linear_value_head_dim", 64},
       {"linear_num_key_heads", 1},
       {"linear_num_value_heads", 2},
       {"num_experts", 4},
       {"shared_expert_intermediate_size", 64}});
  TemporaryFolder folder;
  for (const nlohmann::json& config : {moe, latent, delta}) {
    std::string type = config["model_type"];
    SCOPED_TRACE(type);
    std::string file = folder.path(type + ".json");
    std::ofstream(file) << config.dump();
    ProgramResult got = run_program(
        {"bench",
         "--shape",
         file,
         "--prompt-tokens",
         "8",
         "--gen-tokens",
         "2",
         "--repeat",
         "1",
         "--json"});
    ASSERT_EQ(got.exit_code, 0) << got.err;
    nlohmann::json json = nlohmann::json::parse(got.out);
    EXPECT_GT(json["decode_tokens_per_second"].get<double>(), 0);
  }
}

// A recipe that scales what the pattern matches.
std::string write_recipe(
    const TemporaryFolder& folder,
    const std::string& name,
    const char* pattern) {
  std::string path = folder.path(name);
  std::ofstream(path)
      << "version: 1\noperations:\n  - op: scale\n    pattern: \"" << pattern
      << "\"\n    factor: 2.0\n";
  return path;
}

TEST(Surgery, TheFlagWinsOverTheEnvironment) {
  TemporaryFolder folder;
  write_chain_model(folder.path("model"));
  std::string by_flag = write_recipe(folder, "a.yaml", "*.q_proj.weight");
  std::string by_name = write_recipe(folder, "b.yaml", "*.k_proj.weight");
  ProgramInput named{.environment = {"MLXCEL_SURGERY=" + by_name}};
  std::vector<std::string> plan = {
      "surgery", "plan", "--model", folder.path("model")};
  ProgramResult alone = run_program(plan, named);
  EXPECT_EQ(alone.exit_code, 0) << alone.err;
  EXPECT_THAT(alone.out, HasSubstr("scale *.k_proj.weight"));

  plan.insert(plan.end(), {"--surgery", by_flag});
  ProgramResult both = run_program(plan, named);
  EXPECT_EQ(both.exit_code, 0) << both.err;
  EXPECT_THAT(both.out, HasSubstr("scale *.q_proj.weight"));
  EXPECT_THAT(both.out, Not(HasSubstr("k_proj")));

  plan.back() = "";
  ProgramResult empty = run_program(plan, named);
  EXPECT_EQ(empty.exit_code, 2);
  EXPECT_THAT(empty.err, HasSubstr("a file's name is needed"));
}

TEST(Surgery, ARecipeIsOneDocument) {
  TemporaryFolder folder;
  std::string recipe = folder.path("two.yaml");
  auto refusal = [&](const std::string& text) {
    std::ofstream(recipe) << text;
    ProgramResult got = run_program(
        {"surgery",
         "plan",
         "--model",
         fixture_root() / "text/llama_base/model",
         "--surgery",
         recipe});
    EXPECT_EQ(got.exit_code, 1);
    return got.err;
  };
  EXPECT_EQ(
      refusal("version: 1\noperations: []\n---\nversion: 1\n"),
      "mlxcel: error: cannot read " + recipe +
          ": it holds more than one YAML document: the second begins at line "
          "3, column 1\n"
          "  keep one document in the file, without a line --- behind it\n");
  // 64 levels: the mapping, and the brackets before the one in column 73.
  std::string deep = "version: " + std::string(80, '[') + std::string(80, ']');
  EXPECT_THAT(
      refusal(deep),
      HasSubstr(": it is nested too deeply at line 1, column 73"));
}

}  // namespace
}  // namespace mlxcel::testing
