// Surgery recipes: no crash, no hang, every refusal names the recipe, and a
// recipe that is accepted keeps every tensor's key, dtype and shape and gives
// the same bits on one thread and on two.
// covers: src/surgery/recipe.cpp src/surgery/glob.cpp src/surgery/planner.cpp
// covers: src/surgery/scale.cpp src/surgery/add.cpp src/surgery/prune.cpp
// covers: src/surgery/replace.cpp src/surgery/interpolate.cpp
// covers: src/surgery/edits.cpp src/surgery/requantize.cpp
// covers: src/surgery/apply.cpp src/text/yaml.cpp
// seeds: surgery/cases/*/surgery.yaml surgery/bad/*/surgery.yaml
// links: mlxcel_surgery
#include "core/error.h"
#include "core/log.h"
#include "io/safetensors.h"
#include "models/names.h"
#include "scratch_folder.h"
#include "surgery/surgery.h"
#include "yaml_mutator.h"

#include <algorithm>
#include <cstring>

using namespace mlxcel;

namespace {

constexpr std::string_view kWords[] = {
    "scale",
    "add",
    "prune",
    "replace",
    "interpolate",
    "layer",
    "attention_head",
    "mlp_channel",
    "lerp",
    "slerp",
    "op",
    "pattern",
    "factor",
    "alpha",
    "ratio",
    "method",
    "requantize",
    "granularity",
    "layer_ids",
    "head_ids",
    "channel_ids",
    "source",
    "source_a",
    "source_b",
    "source_key",
    "version",
    "operations",
    "./donor.safetensors",
    "donor.safetensors",
    ".",
    "true",
    "'*'",
    "'model.layers.*'",
    "'*.weight'",
    "'*self_attn.*'",
    "'*mlp.*'",
    "'model.layers.?.mlp.[!g]*'",
    "model.layers.1.mlp.down_proj.weight",
    "model.layers.*.self_attn.q_proj.weight",
    "[0, 1]",
    "[3]",
    "&a",
    "*a",
    "<<",
    "---",
    ".nan",
    "-.inf",
    "!!float",
    "|",
    ">-",
};

void require(bool ok) {
  if (!ok) {
    std::abort();
  }
}

WeightTensor counting(DType dtype, Shape shape, unsigned seed) {
  std::byte* data = nullptr;
  WeightTensor out = make_weight(dtype, std::move(shape), &data);
  for (size_t i = 0; i < out.bytes / 2; ++i) {
    // bf16 numbers of about 1, also as halves of an f32 or of codes
    auto value = uint16_t(0x3f00 + (i * 37 + seed) % 251);
    std::memcpy(data + 2 * i, &value, 2);
  }
  return out;
}

DecoderSpec small_spec() {
  BlockSpec block;
  block.attention.heads = {.query = 4, .key_value = 2, .dim = 8};
  block.mlp.intermediate_size = 32;
  return {.hidden_size = 32, .vocab_size = 8, .blocks = {block, block}};
}

// Layer 0 in f32 and bf16, layer 1 packed: 4 bits, groups of 16.
WeightMap small_weights(unsigned seed) {
  WeightMap out;
  auto matrix = [&](const std::string& stem, int64_t rows, bool packed) {
    if (!packed) {
      out.set(stem + ".weight", counting(DType::f32, {rows, 32}, seed));
      return;
    }
    out.set(stem + ".weight", counting(DType::u32, {rows, 4}, seed));
    out.set(stem + ".scales", counting(DType::bf16, {rows, 2}, seed));
    out.set(stem + ".biases", counting(DType::bf16, {rows, 2}, seed + 1));
  };
  for (int layer = 0; layer < 2; ++layer) {
    std::string block = cat("model.layers.", layer, ".");
    bool packed = layer == 1;
    matrix(block + "self_attn.q_proj", 32, packed);
    matrix(block + "self_attn.k_proj", 16, packed);
    matrix(block + "self_attn.v_proj", 16, packed);
    matrix(block + "self_attn.o_proj", 32, packed);
    matrix(block + "mlp.gate_proj", 32, packed);
    matrix(block + "mlp.up_proj", 32, packed);
    matrix(block + "mlp.down_proj", 32, packed);
    out.set(
        block + "input_layernorm.weight", counting(DType::bf16, {32}, seed));
    out.set(
        block + "post_attention_layernorm.weight",
        counting(DType::f16, {32}, seed));
  }
  out.set("model.norm.weight", counting(DType::f32, {32}, seed));
  out.set("model.embed_tokens.weight", counting(DType::bf16, {8, 32}, seed));
  out.set("lm_head.weight", out.at("model.embed_tokens.weight"));
  return out;
}

struct Setting {
  Setting() {
    set_log_sink([](LogLevel, std::string_view) {});
    // A packed donor for replace, a float one for add and interpolate.
    write_safetensors(scratch.path() / "donor.safetensors", small_weights(7));
    WeightMap floats;
    WeightMap donor = small_weights(9);
    for (const auto& [key, tensor] : donor) {
      if (tensor.dtype == DType::u32) {
        floats.set(key, counting(DType::bf16, {tensor.dim(0), 32}, 3));
      } else if (!key.ends_with(".scales") && !key.ends_with(".biases")) {
        floats.set(key, tensor);
      }
    }
    for (const char* name :
         {"delta_down.safetensors", "a.safetensors", "b.safetensors"}) {
      write_safetensors(scratch.path() / name, floats);
    }
  }

  fuzz::ScratchFolder scratch;
  DecoderSpec spec = small_spec();
  NameMap names{hf_decoder_names(), spec};
  WeightMap weights = small_weights(1);
  ThreadPool one{1}, two{2};
};

void check_kept(const WeightMap& changed, const WeightMap& before) {
  require(changed.keys() == before.keys());
  for (const auto& [key, tensor] : changed) {
    const WeightTensor& old = before.at(key);
    require(tensor.dtype == old.dtype && tensor.shape == old.shape);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Setting setting;
  std::string text(reinterpret_cast<const char*>(data), size);
  std::filesystem::path file = setting.scratch.write("recipe.yaml", text);
  SurgeryBase base{setting.spec, setting.names};
  try {
    Recipe recipe = read_recipe(file);
    if (recipe.operations.size() > 20) {
      return 0;
    }
    WeightMap alone = setting.weights;
    apply_surgery(plan_surgery(recipe, base, alone), alone, setting.one);
    check_kept(alone, setting.weights);
    WeightMap shared = setting.weights;
    apply_surgery(plan_surgery(recipe, base, shared), shared, setting.two);
    for (const auto& [key, tensor] : shared) {
      require(std::memcmp(tensor.data, alone.at(key).data, tensor.bytes) == 0);
    }
  } catch (const SurgeryError& error) {
    require(std::string(error.what()).find("recipe.yaml") != std::string::npos);
  }
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(
    uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  fuzz::YamlMutator mutator(seed, kWords);
  std::string text = mutator.mutate(
      std::string(reinterpret_cast<char*>(data), size), max_size);
  std::copy(text.begin(), text.end(), data);
  return text.size();
}
