// The adapter flags as a user gives them: what is applied, and what is refused
// before anything is generated.
#include "io/safetensors.h"
#include "support/fixtures.h"
#include "support/programs/run_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace mlxcel::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

// The chain model answers '#' with "uvw-klm"; its vocabulary and hidden size
// are 288.
constexpr int64_t kSize = 288;

WeightTensor matrix(
    int64_t rows, int64_t cols, int64_t row, int64_t col, float value) {
  std::byte* data = nullptr;
  WeightTensor tensor = make_weight(DType::f32, {rows, cols}, &data);
  std::memset(data, 0, tensor.bytes);
  std::memcpy(data + (row * cols + col) * 4, &value, 4);
  return tensor;
}

class Adapters : public ::testing::Test {
 protected:
  Adapters() {
    write_chain_model(model());
    write("good", good());
  }

  std::string model() const {
    return folder_.path("chain");
  }
  std::string adapter(const std::string& name = "good") const {
    return folder_.path(name);
  }

  // After '#' it lifts '!' to 0.6 where 'u' has 1: alone it changes no answer,
  // twice it does.
  static WeightMap good() {
    WeightMap tensors;
    tensors.set("lm_head.lora_a", matrix(kSize, 1, '#', 0, 1));
    tensors.set("lm_head.lora_b", matrix(1, kSize, 0, '!', 0.3f));
    return tensors;
  }

  void write(const std::string& name, const WeightMap& tensors) const {
    fs::create_directories(adapter(name));
    write_safetensors(adapter(name) + "/adapters.safetensors", tensors);
    std::ofstream(adapter(name) + "/adapter_config.json")
        << R"({"lora_parameters": {"rank": 1, "scale": 2.0}})";
  }

  ProgramResult generate(std::vector<std::string> more) const {
    std::vector<std::string> arguments = {
        "generate",
        "--model",
        model(),
        "--prompt",
        "#",
        "--max-tokens",
        "20",
        "--no-chat-template"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_program(arguments);
  }

  TemporaryFolder folder_;
};

constexpr const char* kBase = "uvw-klm\n";
constexpr const char* kChanged = "!\n";

TEST_F(Adapters, ApplyAtTheirScalesAndSum) {
  std::string a = adapter();
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{}, kBase},
      {{"--adapter", a}, kBase},
      {{"--adapter", a + "," + a}, kChanged},
      {{"--lora", a}, kBase},
      {{"--lora", a + "," + a}, kChanged},
      {{"--lora", a, "--lora", a}, kChanged},
      {{"--lora-scaled", a + ":2"}, kChanged},
      {{"--lora-scaled", a + ":1e0," + a + ":+0.9"}, kChanged},
      {{"--lora-scaled", a + ":2," + a + ":-1"}, kBase},
      {{"--lora-scaled", a + ":2", "--lora-fuse"}, kChanged},
      {{"--adapter", a, "--lora", a}, kChanged},
      {{"--lora", a, "--adapter", a}, kChanged},
  };
  for (const auto& [flags, text] : cases) {
    ProgramResult got = generate(flags);
    EXPECT_EQ(got.exit_code, 0) << got.err;
    EXPECT_EQ(got.out, text) << ::testing::PrintToString(flags);
  }
}

TEST_F(Adapters, AFolderMayHaveACommaInItsName) {
  write("with,comma", good());
  std::string comma = adapter("with,comma");
  EXPECT_EQ(generate({"--lora", comma, "--lora", adapter()}).out, kChanged);
  EXPECT_EQ(generate({"--adapter", comma}).out, kBase);
  EXPECT_EQ(generate({"--lora-scaled", comma + ":2"}).out, kChanged);
  ProgramResult got = generate({"--lora", comma + "," + adapter()});
  EXPECT_EQ(got.exit_code, 1);
  EXPECT_THAT(got.err, HasSubstr(adapter("with")));
}

TEST_F(Adapters, ScaleZeroIsTheBase) {
  std::string zero = adapter() + ":0";
  for (std::vector<std::string> flags :
       {std::vector<std::string>{"--lora-scaled", zero},
        {"--lora-scaled", adapter() + ":-0.0"},
        {"--lora-scaled", adapter() + ":1e-60"},
        {"--lora-scaled", zero + "," + zero},
        {"--lora-scaled", zero, "--lora-fuse"}}) {
    EXPECT_EQ(generate(flags).out, kBase);
  }
}

TEST_F(Adapters, RefuseWrongScales) {
  for (const char* scale :
       {"",
        ":",
        ":x",
        ":nan",
        ":inf",
        ":1e39",
        ":1e999",
        ":1.0x",
        ":0x10",
        ":+-1"}) {
    ProgramResult got =
        generate({"--lora-scaled", adapter() + std::string(scale)});
    EXPECT_EQ(got.exit_code, 2) << scale;
    EXPECT_EQ(got.out, "");
    EXPECT_THAT(got.err, HasSubstr("wrong scale in --lora-scaled")) << scale;
  }
  // Only the last colon counts, so a folder may have some.
  fs::rename(adapter(), adapter("good:1"));
  EXPECT_EQ(
      generate({"--lora-scaled", adapter("good:1") + ":2"}).out, kChanged);
}

// One bad tensor refuses the load on every path, whatever good ones are beside
// it.
TEST_F(Adapters, ATensorThatCannotBeAppliedStopsTheLoad) {
  struct Bad {
    const char* name;
    WeightMap tensors;
    const char* mentions;
  };
  WeightMap typo = good(), shape = good(), half = good(), twice = good(), peft;
  typo.set("model.layers.0.self_attn.q_porj.lora_a", matrix(kSize, 1, 0, 0, 1));
  typo.set("model.layers.0.self_attn.q_porj.lora_b", matrix(1, kSize, 0, 0, 1));
  shape.set(
      "model.layers.0.self_attn.q_proj.lora_a", matrix(kSize, 1, 0, 0, 1));
  shape.set("model.layers.0.self_attn.q_proj.lora_b", matrix(1, 96, 0, 0, 1));
  half.set("model.layers.0.self_attn.v_proj.lora_a", matrix(kSize, 1, 0, 0, 1));
  for (std::string name :
       {"layers.0.self_attn.o_proj", "model.layers.0.self_attn.o_proj"}) {
    twice.set(name + ".lora_a", matrix(kSize, 1, 0, 0, 1));
    twice.set(name + ".lora_b", matrix(1, kSize, 0, 0, 1));
  }
  peft.set(
      "base_model.model.lm_head.lora_A.weight", matrix(1, kSize, 0, '#', 1));
  peft.set(
      "base_model.model.lm_head.lora_B.weight", matrix(kSize, 1, '!', 0, 1));
  const Bad cases[] = {
      {"bad_typo", typo, "model.layers.0.self_attn.q_porj"},
      {"bad_shape", shape, "model.layers.0.self_attn.q_proj"},
      {"bad_half", half, "model.layers.0.self_attn.v_proj.lora_b"},
      {"bad_twice",
       twice,
       "its pairs on layers.0.self_attn.o_proj and "
       "model.layers.0.self_attn.o_proj are two for one base weight"},
      {"bad_peft", peft, "base_model.model.lm_head.lora_A.weight"},
  };
  for (const Bad& bad : cases) {
    write(bad.name, bad.tensors);
    for (std::vector<std::string> flags :
         {std::vector<std::string>{"--adapter", adapter(bad.name)},
          {"--lora", adapter(bad.name)},
          {"--lora", adapter(bad.name), "--lora-fuse"},
          {"--lora", adapter() + "," + adapter(bad.name)},
          {"--lora-scaled", adapter(bad.name) + ":0"}}) {
      ProgramResult got = generate(flags);
      EXPECT_EQ(got.exit_code, 1);
      EXPECT_EQ(got.out, "");
      EXPECT_THAT(got.err, HasSubstr(bad.mentions)) << bad.name;
    }
  }
  EXPECT_THAT(
      generate({"--adapter", adapter("bad_typo")}).err,
      HasSubstr("did you mean"));
  EXPECT_THAT(
      generate({"--adapter", adapter("bad_peft")}).err,
      HasSubstr("mlxcel convert-adapter"));
}

// A quantized base takes adapters live; fusing is refused and names the way.
TEST_F(Adapters, AQuantizedBaseIsServedLive) {
  fs::path lora = fixture_root() / "lora";
  std::string base = lora / "bases" / "llama_untied_q";
  std::string folder = lora / "bad" / "fuse_into_quantized";
  auto run = [&](const std::string& flag, const std::string& value) {
    std::vector<std::string> arguments = {
        "generate",
        "--model",
        base,
        "--prompt",
        "The quick",
        "--max-tokens",
        "12",
        "--no-chat-template"};
    if (!flag.empty()) {
      arguments.insert(arguments.end(), {flag, value});
    }
    return run_program(arguments);
  };
  ProgramResult refused = run("--adapter", folder);
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_EQ(refused.out, "");
  EXPECT_THAT(
      refused.err,
      AllOf(
          HasSubstr("--lora"),
          HasSubstr("model.layers.0.self_attn.q_proj.weight is quantized")));
  std::string plain = run("", "").out;
  ProgramResult live = run("--lora", folder);
  EXPECT_EQ(live.exit_code, 0) << live.err;
  EXPECT_NE(live.out, plain);
  EXPECT_EQ(run("--lora-scaled", folder + ":0").out, plain);
}

// The estimate's weights: 288 x 288 x 2 bytes of the base's head where it is
// fused, else the adapter's own 2 x 288 x 4.
TEST_F(Adapters, AServerCountsThemAsLive) {
  auto weights = [&](const std::string& command,
                     std::vector<std::string> flags) {
    flags.insert(
        flags.begin(), {command, "--model", model(), "--estimate-memory"});
    ProgramResult got = run_program(flags);
    EXPECT_EQ(got.exit_code, 0) << got.err;
    size_t begin = got.out.find("weights ");
    return got.out.substr(begin, got.out.find(',', begin) - begin);
  };
  std::vector<std::string> fused = {"--adapter", adapter()};
  std::vector<std::string> live = {"--lora", adapter()};
  std::string base = weights("generate", {});
  EXPECT_EQ(weights("generate", live), base);  // 2.3 kB do not show
  EXPECT_NE(weights("generate", fused), base);
  EXPECT_EQ(weights("serve", live), base);
  EXPECT_EQ(weights("serve", fused), base);
  fused.push_back("--lora-fuse");
  EXPECT_NE(weights("serve", fused), base);
}

TEST_F(Adapters, InspectDescribesThem) {
  ProgramResult got = run_program({"inspect", "--adapter", adapter()});
  EXPECT_EQ(got.exit_code, 0) << got.err;
  EXPECT_EQ(
      got.out,
      "Path              " + adapter() +
          "/adapters.safetensors\n"
          "Task name         good\n"
          "Pairs             1, F32, 2.3 kB\n"
          "Rank              1\n"
          "Scale             2\n"
          "  lm_head         1\n");
  got = run_program(
      {"inspect", "--adapter", adapter(), "--model", model(), "--json"});
  EXPECT_EQ(got.exit_code, 0) << got.err;
  nlohmann::json json = nlohmann::json::parse(got.out);
  EXPECT_EQ(json.at("pairs"), 1);
  EXPECT_EQ(json.at("scale"), 2.0);
  EXPECT_EQ(json.at("fits"), true);
  EXPECT_EQ(json.at("can_fuse"), true);

  WeightMap tensors = good();
  tensors.set("model.layers.7.mlp.up_proj.lora_a", matrix(kSize, 1, 0, 0, 1));
  tensors.set("model.layers.7.mlp.up_proj.lora_b", matrix(1, 64, 0, 0, 1));
  write("elsewhere", tensors);
  got = run_program(
      {"inspect", "--adapter", adapter("elsewhere"), "--model", model()});
  EXPECT_EQ(got.exit_code, 1);
  EXPECT_THAT(
      got.out,
      HasSubstr("Fits              no: its pair on model.layers.7.mlp.up_proj "
                "has no base weight"));
}

TEST_F(Adapters, ConvertAdapterWritesWhatTheLoaderReads) {
  WeightMap tensors;
  tensors.set(
      "base_model.model.lm_head.lora_A.weight", matrix(1, kSize, 0, '#', 1));
  tensors.set(
      "base_model.model.lm_head.lora_B.weight", matrix(kSize, 1, '!', 0, 1));
  fs::create_directories(folder_.path("peft"));
  write_safetensors(folder_.path("peft/adapter_model.safetensors"), tensors);
  std::ofstream(folder_.path("peft/adapter_config.json"))
      << R"({"peft_type": "LORA", "r": 1, "lora_alpha": 2})";
  ProgramResult got = run_program(
      {"convert-adapter", folder_.path("peft"), folder_.path("mine")});
  EXPECT_EQ(got.exit_code, 0) << got.err;
  EXPECT_THAT(got.err, HasSubstr("1 pairs, rank 1, scale 2"));
  EXPECT_EQ(generate({"--lora", folder_.path("mine")}).out, kChanged);
  EXPECT_EQ(generate({"--adapter", folder_.path("mine")}).out, kChanged);
  got = run_program(
      {"convert-adapter", folder_.path("peft"), folder_.path("mine")});
  EXPECT_EQ(got.exit_code, 1);
  EXPECT_THAT(got.err, HasSubstr("not an empty folder"));
}

}  // namespace
}  // namespace mlxcel::testing
