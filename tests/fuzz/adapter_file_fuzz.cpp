// An adapter's safetensors file from disk to fused weights: no crash, every
// refusal names the folder, and a refused adapter changes no weight.
// covers: src/adapters/adapter.cpp src/adapters/resolve.cpp
// covers: src/adapters/fuse.cpp src/adapters/live.cpp src/adapters/digest.cpp
// seeds: lora/adapters/*/adapters.safetensors lora/bad/*/adapters.safetensors
// links: mlxcel_io OpenSSL::Crypto
// clang-format off
// sources: src/adapters/adapter.cpp src/adapters/config.cpp src/adapters/digest.cpp src/adapters/folder.cpp src/adapters/fuse.cpp src/adapters/live.cpp src/adapters/resolve.cpp src/models/names.cpp src/models/spec.cpp
// clang-format on
#include "adapters/fuse.h"
#include "adapters/live.h"
#include "core/error.h"
#include "safetensors_mutator.h"
#include "scratch_folder.h"

#include <algorithm>
#include <cstring>

using namespace mlxcel;

namespace {

constexpr std::string_view kWords[] = {
    "\"F32\"",
    "\"BF16\"",
    "\"F16\"",
    "\"I32\"",
    "\"shape\"",
    "\"model.layers.0.self_attn.q_proj.lora_a\"",
    "\"model.layers.0.self_attn.q_proj.lora_b\"",
    "\"model.layers.1.mlp.up_proj.lora_b\"",
    "\"model.embed_tokens.lora_a\"",
    "\"lm_head.lora_b\"",
    "\"model.norm.lora_a\"",
    "\"x.lora_A.weight\"",
    "[4,64]",
    "[64,4]",
    "[4,256]",
    "[0,4]",
};

void require(bool ok) {
  if (!ok) {
    std::abort();
  }
}

// The base of most fixtures, with weights of zeros.
struct Base {
  explicit Base(bool tied)
      : family{.name = "Llama", .type = "Llama", .model_types = {"llama"}, .embed_pairs = EmbedPairs::when_tied, .names = hf_decoder_names()},
        spec(spec_of(tied)),
        names(family.names, spec) {
    for (const std::string& stem : names.known_stems()) {
      std::vector<RolePart> parts = names.parts_of(stem);
      bool preferred =
          stem == names.stems_of(parts.front().role.name).front().stem;
      if (parts.size() != 1 || !preferred || (tied && stem == "lm_head")) {
        continue;
      }
      int64_t rows = names.rows(parts[0].role);
      int64_t cols = names.cols(parts[0].role);
      std::byte* data = nullptr;
      WeightTensor weight = make_weight(
          DType::f32, cols > 0 ? Shape{rows, cols} : Shape{rows}, &data);
      std::memset(data, 0, weight.bytes);
      weights.set(stem + ".weight", weight);
    }
  }

  static DecoderSpec spec_of(bool tied) {
    BlockSpec block;
    block.attention.heads = {.query = 4, .key_value = 2, .dim = 16};
    block.mlp.intermediate_size = 128;
    DecoderSpec spec;
    spec.hidden_size = 64;
    spec.vocab_size = 256;
    spec.blocks.assign(2, block);
    spec.head = tied ? HeadKind::tied : HeadKind::own;
    return spec;
  }

  Family family;
  DecoderSpec spec;
  NameMap names;
  WeightMap weights;
};

void apply(const Adapter& adapter, const Base& base, ThreadPool& pool) {
  WeightMap weights = base.weights;
  try {
    AdapterBase target{base.family, base.spec, base.names, weights};
    ResolvedAdapter resolved = resolve_adapter(adapter, target);
    require(resolved.pairs.size() == adapter.pairs.size());
    require(!live_terms({{0, &resolved}}, base.spec).empty());
    fuse_adapters({{&resolved, 0.5f}}, target, weights, pool);
  } catch (const AdapterError& error) {
    require(
        std::string(error.what()).find(adapter.folder.string()) !=
        std::string::npos);
    for (const auto& [key, tensor] : base.weights) {
      require(weights.at(key).data == tensor.data);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::ScratchFolder scratch;
  static const Base untied(false), tied(true);
  static ThreadPool pool(1);
  static const auto config = scratch.write(
      "adapter_config.json", R"({"lora_parameters": {"rank": 4}})");
  scratch.write(
      "adapters.safetensors", {reinterpret_cast<const char*>(data), size});
  try {
    Adapter adapter = read_adapter(scratch.path());
    require(!adapter.pairs.empty() && adapter.digest.size() == 64);
    apply(adapter, untied, pool);
    apply(adapter, tied, pool);
  } catch (const AdapterError& error) {
    require(
        std::string(error.what()).find(scratch.path().string()) !=
        std::string::npos);
  } catch (const CheckpointError& error) {
    require(
        std::string(error.what()).find("adapters.safetensors") !=
        std::string::npos);
  }
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(
    uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return fuzz::mutate_safetensors(data, size, max_size, seed, kWords);
}
