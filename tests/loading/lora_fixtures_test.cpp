// LoRA adapters against reference logits: every case of the fixtures in each of
// its modes, on every backend and instruction set of this machine; and every
// adapter that must be refused.
#include "adapters/fuse.h"
#include "core/cpu_features.h"
#include "core/error.h"
#include "io/checkpoint.h"
#include "io/safetensors.h"
#include "loading/config_file.h"
#include "loading/detect.h"
#include "loading/pipeline.h"
#include "loading/sanitize_weights.h"
#include "models/registry.h"
#include "support/fixtures.h"
#include "support/models/sequences.h"
#include "support/models/text_case.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <tuple>

namespace mlxcel {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;
using testing::Logits;
using testing::SequenceRunner;

fs::path root() {
  return testing::fixture_root() / "lora";
}

json read_json(const fs::path& path) {
  std::ifstream stream(path);
  return json::parse(stream);
}

// "cases" or "bad" of the index.
json index_list(const char* name) {
  return read_json(root() / "index.json").at(name);
}

bool runnable(const json& entry) {
  json config =
      read_json(root() / entry.at("base").get<std::string>() / "config.json");
  const Family* family =
      find_by_model_type(config.at("model_type").get<std::string>());
  return family != nullptr && family->decoder != nullptr;
}

// "graph", or the instruction set that the CPU backend is held to.
std::vector<std::string> targets() {
  std::vector<std::string> out;
  for (Isa isa : supported_isas()) {
    out.emplace_back(name_of(isa));
  }
#ifdef MLXCEL_TEST_GRAPH
  out.emplace_back("graph");
#endif
  return out;
}

LoadedModel load(LoadOptions options, const std::string& target) {
  options.backend = target == "graph" ? BackendKind::graph : BackendKind::cpu;
  if (target != "graph") {
    setenv("MLXCEL_CPU_ISA", target.c_str(), 1);
  }
  struct Restore {
    ~Restore() {
      unsetenv("MLXCEL_CPU_ISA");
    }
  } restore;
  return load_model(options);
}

// One way of running one case.
struct Setting {
  std::string name, mode, target;
};

std::vector<Setting> runs() {
  std::vector<Setting> out;
  for (const json& entry : index_list("cases")) {
    if (!runnable(entry)) {
      continue;
    }
    for (const json& mode : entry.at("modes")) {
      for (const std::string& target : targets()) {
        out.push_back({entry.at("name"), mode, target});
      }
    }
  }
  return out;
}

struct Case {
  json meta;
  LoadOptions options;
  std::vector<float> scales;  // of the live adapters
  std::vector<int32_t> input_ids, greedy;
  std::vector<float> margins;
  Logits logits;
};

template <typename T>
std::vector<T> values(const WeightMap& tensors, const std::string& key) {
  const WeightTensor& tensor = tensors.at(key);
  std::vector<T> out(tensor.bytes / sizeof(T));
  std::memcpy(out.data(), tensor.data, tensor.bytes);
  return out;
}

Case load_case(const std::string& name, const std::string& mode) {
  fs::path folder = root() / "cases" / name;
  Case out;
  out.meta = read_json(folder / "case.json");
  out.options.model = root() / out.meta.at("base").get<std::string>();
  for (const json& adapter : out.meta.at("adapters")) {
    out.options.adapters.push_back(
        {root() / adapter.at("path").get<std::string>(),
         adapter.at("scale").get<float>(),
         mode == "fused"});
    out.scales.push_back(
        mode == "fused" ? 0.f : adapter.at("scale").get<float>());
  }
  WeightMap tensors = read_safetensors(folder / "expected.safetensors").tensors;
  out.input_ids = values<int32_t>(tensors, "input_ids");
  out.greedy = values<int32_t>(tensors, "greedy");
  out.margins = values<float>(tensors, "margins");
  std::vector<float> flat = values<float>(tensors, "logits");
  auto vocab = int64_t(flat.size() / out.input_ids.size());
  for (auto row = flat.begin(); row != flat.end(); row += vocab) {
    out.logits.emplace_back(row, row + vocab);
  }
  return out;
}

class LoraFixture : public ::testing::TestWithParam<Setting> {};

TEST_P(LoraFixture, MatchesTheReference) {
  const Setting& run = GetParam();
  Case expected = load_case(run.name, run.mode);
  std::optional<LoadedModel> model;
  try {
    model.emplace(load(expected.options, run.target));
  } catch (const AdapterError& error) {
    ASSERT_TRUE(expected.meta.at("refusal_also_accepted").get<bool>())
        << error.what();
    return;
  }
  SequenceRunner runner(*model->backend, *model->model);
  int sequence = runner.add(expected.scales);
  Logits logits = runner.prefill(sequence, expected.input_ids);
  EXPECT_LE(
      testing::max_difference(logits, expected.logits),
      expected.meta.at("atol").get<double>());
  EXPECT_LE(
      testing::mean_difference(logits, expected.logits),
      expected.meta.at("mean_atol").get<double>());
  double margin = expected.meta.at("greedy_margin_needed").get<double>();
  std::vector<float> last = logits.back();
  for (size_t i = 0;
       i < expected.greedy.size() && double(expected.margins[i]) >= margin;
       ++i) {
    int32_t token = testing::argmax(last);
    ASSERT_EQ(token, expected.greedy[i]) << "greedy step " << i;
    last = runner.decode(sequence, token);
  }
}

std::string name_of_run(const ::testing::TestParamInfo<Setting>& test) {
  return test.param.name + "_" + test.param.mode + "_on_" + test.param.target;
}

INSTANTIATE_TEST_SUITE_P(
    Lora, LoraFixture, ::testing::ValuesIn(runs()), name_of_run);

// The base model's tensors after fusing, without a model.
WeightMap fuse(const Case& test_case) {
  const fs::path& folder = test_case.options.model;
  Config config = read_config(folder);
  const Family& family =
      require_generation(detect_model(folder, config), config);
  DecoderSpec spec = decoder_spec(family, config);
  NameMap names(family.names, spec);
  WeightMap weights = load_weights(folder);
  std::vector<ResolvedAdapter> resolved;
  for (const AdapterRequest& request : test_case.options.adapters) {
    resolved.push_back(resolve_adapter(
        read_adapter(request.folder), {family, spec, names, weights}));
  }
  std::vector<ScaledAdapter> scaled;
  for (size_t i = 0; i < resolved.size(); ++i) {
    scaled.push_back({&resolved[i], test_case.options.adapters[i].scale});
  }
  ThreadPool pool(2);
  fuse_adapters(scaled, {family, spec, names, weights}, weights, pool);
  return weights;
}

// Distance in units of the last place of bf16.
int bf16_distance(uint16_t x, uint16_t y) {
  auto order = [](uint16_t bits) {
    return (bits & 0x8000) != 0 ? -int(bits & 0x7fff) : int(bits);
  };
  return std::abs(order(x) - order(y));
}

TEST(LoraFusedWeights, MatchTheReference) {
  int compared = 0;
  for (const json& entry : index_list("cases")) {
    std::string name = entry.at("name");
    fs::path file = root() / "cases" / name / "fused_weights.safetensors";
    if (!runnable(entry) || !fs::exists(file)) {
      continue;
    }
    SCOPED_TRACE(name);
    WeightMap fused = fuse(load_case(name, "fused"));
    WeightMap expected = read_safetensors(file).tensors;
    for (const auto& [key, want] : expected) {
      SCOPED_TRACE(key);
      const WeightTensor& got = fused.at(key);
      ASSERT_EQ(got.dtype, want.dtype);
      ASSERT_EQ(got.shape, want.shape);
      int64_t count = element_count(want.shape);
      int wrong = 0;
      for (int64_t i = 0; i < count; ++i) {
        if (want.dtype == DType::bf16) {
          uint16_t x = 0, y = 0;
          std::memcpy(&x, got.data + 2 * i, 2);
          std::memcpy(&y, want.data + 2 * i, 2);
          wrong += bf16_distance(x, y) > 1 ? 1 : 0;
        } else {
          ASSERT_EQ(want.dtype, DType::f32);
          float x = 0, y = 0;
          std::memcpy(&x, got.data + 4 * i, 4);
          std::memcpy(&y, want.data + 4 * i, 4);
          // Where base and update cancel, the last bits are those of the
          // terms; the weights are about 1e-1.
          wrong += std::abs(x - y) > 1e-5f * std::max(std::abs(y), 1e-1f);
        }
      }
      EXPECT_EQ(wrong, 0) << "of " << count;
    }
    ++compared;
  }
  // The part of the fixtures that the repository carries may have none of them;
  // then the property tests of tests/adapters stand alone.
  RecordProperty("cases", compared);
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) {
    return char(std::tolower(c));
  });
  return text;
}

std::string refusal(
    const fs::path& base,
    const fs::path& adapter,
    const std::string& mode,
    const std::string& target) {
  LoadOptions options;
  options.model = base;
  options.adapters = {{adapter, 1, mode == "fused"}};
  try {
    load(options, target);
  } catch (const AdapterError& error) {
    return error.what();
  } catch (const CheckpointError& error) {
    return error.what();  // of the safetensors reader
  }
  return "";
}

std::vector<Setting> refusals() {
  std::vector<Setting> out;
  for (const json& entry : index_list("bad")) {
    if (!runnable(entry)) {
      continue;
    }
    for (const json& mode : entry.at("modes")) {
      out.push_back(
          {entry.at("name"), mode, std::string(name_of(Isa::portable))});
#ifdef MLXCEL_TEST_GRAPH
      out.push_back({entry.at("name"), mode, "graph"});
#endif
    }
  }
  return out;
}

class LoraRefusal : public ::testing::TestWithParam<Setting> {};

TEST_P(LoraRefusal, NamesWhatIsWrong) {
  const Setting& run = GetParam();
  fs::path adapter = root() / "bad" / run.name;
  json expected = read_json(adapter / "expected_error.json");
  std::string message = refusal(
      root() / expected.at("base").get<std::string>(),
      adapter,
      run.mode,
      run.target);
  ASSERT_NE(message, "") << "accepted";
  for (const json& part : expected.at("must_mention")) {
    EXPECT_THAT(lower(message), HasSubstr(lower(part.get<std::string>())));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Lora, LoraRefusal, ::testing::ValuesIn(refusals()), name_of_run);

// Whole messages. "@" stands for the fixtures' folder.
TEST(LoraRefusalMessage, SaysWhatWhyAndHow) {
  struct Expected {
    const char* base;
    const char* adapter;
    const char* mode;
    std::string message;
  };
  const Expected cases[] = {
      {"llama_untied_q",
       "fuse_into_quantized",
       "fused",
       "cannot fuse adapter @/bad/fuse_into_quantized: base weight "
       "model.layers.0.self_attn.q_proj.weight is quantized (U32)\n  serve it "
       "unfused with --lora, or fuse into an unquantized checkpoint"},
      {"llama_untied_f32",
       "peft_keys",
       "fused",
       "cannot apply adapter @/bad/peft_keys/adapters.safetensors: tensor "
       "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight has "
       "PEFT's name (lora_A, lora_B)\n  convert the folder with mlxcel "
       "convert-adapter PEFT_DIR OUT_DIR"},
      {"llama_untied_f32",
       "dora",
       "unfused",
       "DoRA adapters are not supported: @/bad/dora/adapter_config.json says "
       "fine_tune_type \"dora\"; its low-rank pair without the magnitudes is "
       "neither the base model nor the fine-tune\n  fuse it into its base "
       "checkpoint with the tool that trained it, and load the result as a "
       "model"},
      {"llama_untied_f32",
       "missing_lora_a",
       "unfused",
       "cannot apply adapter @/bad/missing_lora_a/adapters.safetensors: the "
       "pair of model.layers.0.self_attn.k_proj lacks its half "
       "model.layers.0.self_attn.k_proj.lora_a\n  both halves are needed: "
       "train or export the adapter again"},
      {"llama_tied_q",
       "lm_head_on_llama_tied_q",
       "unfused",
       "cannot apply adapter @/bad/lm_head_on_llama_tied_q: it has a pair on "
       "lm_head, and this checkpoint's lm_head is tied to its embedding\n  "
       "train the pair on embed_tokens, or on an untied checkpoint"},
      {"llama_untied_f32",
       "no_such_folder",
       "fused",
       "cannot read adapter @/bad/no_such_folder: there is no such folder\n  "
       "give the folder that holds adapter_config.json and "
       "adapters.safetensors"},
      {"llama_untied_f32",
       "../index.json",
       "fused",
       "cannot read adapter @/bad/../index.json: it is a file, and an adapter "
       "is a folder\n  give the folder that holds adapter_config.json and "
       "adapters.safetensors"},
  };
  for (const auto& [base, adapter, mode, message] : cases) {
    std::string expected = message;
    for (size_t at = 0; (at = expected.find('@')) != std::string::npos;) {
      expected.replace(at, 1, root().string());
    }
    EXPECT_EQ(
        refusal(
            root() / "bases" / base,
            root() / "bad" / adapter,
            mode,
            std::string(name_of(Isa::portable))),
        expected);
  }
}

// One bad adapter beside a good one refuses the load, whatever the order.
TEST(LoraRefusalMessage, AGoodAdapterDoesNotSaveABadOne) {
  for (bool bad_first : {false, true}) {
    LoadOptions options;
    options.model = root() / "bases" / "llama_untied_f32";
    options.adapters = {
        {root() / "adapters" / "stack_a", 1, false},
        {root() / "bad" / "unmatched_name", 1, false}};
    if (bad_first) {
      std::swap(options.adapters[0], options.adapters[1]);
    }
    EXPECT_THROW(
        load(options, std::string(name_of(Isa::portable))), AdapterError);
  }
}

}  // namespace
}  // namespace mlxcel
