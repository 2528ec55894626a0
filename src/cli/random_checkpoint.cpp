#include "cli/random_checkpoint.h"

#include "core/error.h"
#include "core/half.h"
#include "io/safetensors.h"

#include <nlohmann/json.hpp>

#include <cmath>
#include <cstring>
#include <fstream>
#include <vector>

namespace mlxcel::cli {

namespace {

namespace fs = std::filesystem;

enum class ShapeFamily : uint8_t { llama, mamba2 };

struct KnownShape {
  const char* name;
  int64_t hidden, intermediate, layers, heads, kv_heads, head_dim, vocab;
  bool tied;
  ShapeFamily family = ShapeFamily::llama;
  const char* body = "model.";
};

// Sizes from the published configs of Llama 3.2 1B, Llama 3.1 8B and Mamba 2
// 1.3B (its kv_heads are groups).
constexpr KnownShape kShapes[] = {
    {"1b", 2048, 8192, 16, 32, 8, 64, 128256, true},
    {"8b", 4096, 14336, 32, 32, 8, 128, 128256, false},
    {"mamba2",
     2048,
     4096,
     48,
     64,
     1,
     64,
     50288,
     true,
     ShapeFamily::mamba2,
     "backbone."},
};
constexpr int64_t kStateSize = 128, kTaps = 4;  // of Mamba 2
constexpr int64_t kGroupSize = 64;

const KnownShape& find_shape(const std::string& name) {
  for (const KnownShape& shape : kShapes) {
    if (name == shape.name) {
      return shape;
    }
  }
  if (name == "moe") {
    throw UsageError(
        cat("--shape ", name, " is not built yet"),
        "this version makes no mixtures of experts",
        "give 1b, 8b or mamba2");
  }
  throw UsageError(
      cat("unknown shape ", name),
      "the shapes are 1b, 8b and mamba2",
      "give --shape 1b, 8b or mamba2");
}

// SplitMix64: fast, and good enough for weights that nobody reads.
struct Random {
  uint64_t state;
  uint64_t next() {
    uint64_t z = state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  float signed_unit() {  // in [-1, 1)
    return float(int64_t(next()) >> 40) * 0x1p-23f;
  }
};

void fill(std::byte* data, size_t bytes, Random& random) {
  for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
    uint64_t word = random.next();
    std::memcpy(data + i, &word, std::min(sizeof word, bytes - i));
  }
}

// A matrix whose products keep the size of their input.
void add_matrix(
    WeightMap& map,
    const std::string& stem,
    int64_t out,
    int64_t in,
    int bits,
    Random& random) {
  std::byte* data = nullptr;
  float spread = std::sqrt(3.f / float(in));  // uniform with variance 1 / in
  if (bits == 16) {
    WeightTensor weight = make_weight(DType::bf16, {out, in}, &data);
    auto* values = reinterpret_cast<uint16_t*>(data);
    for (int64_t i = 0; i < out * in; ++i) {
      values[i] = f32_to_bf16(random.signed_unit() * spread);
    }
    map.set(stem + ".weight", weight);
    return;
  }
  WeightTensor packed = make_weight(DType::u32, {out, in * bits / 32}, &data);
  fill(data, packed.bytes, random);
  map.set(stem + ".weight", packed);
  int64_t groups = out * in / kGroupSize;
  std::byte* bias_data = nullptr;
  WeightTensor scales = make_weight(DType::bf16, {out, in / kGroupSize}, &data);
  WeightTensor biases =
      make_weight(DType::bf16, {out, in / kGroupSize}, &bias_data);
  auto* scale_values = reinterpret_cast<uint16_t*>(data);
  auto* bias_values = reinterpret_cast<uint16_t*>(bias_data);
  float steps = float((1 << bits) - 1);
  for (int64_t i = 0; i < groups; ++i) {
    float range = spread * (1 + 0.25f * random.signed_unit());
    scale_values[i] = f32_to_bf16(2 * range / steps);
    bias_values[i] = f32_to_bf16(-range);
  }
  map.set(stem + ".scales", scales);
  map.set(stem + ".biases", biases);
}

void add_norm(WeightMap& map, const std::string& stem, int64_t size) {
  std::byte* data = nullptr;
  WeightTensor weight = make_weight(DType::bf16, {size}, &data);
  auto* values = reinterpret_cast<uint16_t*>(data);
  std::fill(values, values + size, f32_to_bf16(1));
  map.set(stem + ".weight", weight);
}

// Numbers around `center`.
void add_numbers(
    WeightMap& map,
    const std::string& key,
    const Shape& shape,
    float center,
    float spread,
    Random& random) {
  std::byte* data = nullptr;
  WeightTensor tensor = make_weight(DType::bf16, shape, &data);
  auto* values = reinterpret_cast<uint16_t*>(data);
  for (int64_t i = 0; i < element_count(shape); ++i) {
    values[i] = f32_to_bf16(center + spread * random.signed_unit());
  }
  map.set(key, tensor);
}

void add_llama_layer(
    WeightMap& map,
    const std::string& stem,
    const KnownShape& shape,
    int bits,
    Random& random) {
  int64_t q = shape.heads * shape.head_dim,
          kv = shape.kv_heads * shape.head_dim;
  auto matrix = [&](const char* name, int64_t out, int64_t in) {
    add_matrix(map, stem + name, out, in, bits, random);
  };
  matrix("self_attn.q_proj", q, shape.hidden);
  matrix("self_attn.k_proj", kv, shape.hidden);
  matrix("self_attn.v_proj", kv, shape.hidden);
  matrix("self_attn.o_proj", shape.hidden, q);
  matrix("mlp.gate_proj", shape.intermediate, shape.hidden);
  matrix("mlp.up_proj", shape.intermediate, shape.hidden);
  matrix("mlp.down_proj", shape.hidden, shape.intermediate);
  add_norm(map, stem + "input_layernorm", shape.hidden);
  add_norm(map, stem + "post_attention_layernorm", shape.hidden);
}

void add_mamba2_layer(
    WeightMap& map,
    const std::string& stem,
    const KnownShape& shape,
    int bits,
    Random& random) {
  int64_t inner = shape.intermediate;
  int64_t channels = inner + 2 * shape.kv_heads * kStateSize;
  auto matrix = [&](const char* name, int64_t out, int64_t in) {
    add_matrix(map, stem + name, out, in, bits, random);
  };
  auto numbers = [&](const char* name, const Shape& size, float center) {
    add_numbers(map, stem + name, size, center, 0.5f, random);
  };
  matrix("mixer.in_proj", inner + channels + shape.heads, shape.hidden);
  matrix("mixer.out_proj", shape.hidden, inner);
  numbers("mixer.conv1d.weight", {channels, kTaps, 1}, 0);
  numbers("mixer.conv1d.bias", {channels}, 0);
  numbers("mixer.A_log", {shape.heads}, 1);
  numbers("mixer.D", {shape.heads}, 1);
  numbers("mixer.dt_bias", {shape.heads}, -4);  // softplus: the usual steps
  add_norm(map, stem + "mixer.norm", inner);
  add_norm(map, stem + "norm", shape.hidden);
}

nlohmann::ordered_json mamba2_config(const KnownShape& shape) {
  return {
      {"model_type", "mamba2"},
      {"architectures", {"Mamba2ForCausalLM"}},
      {"hidden_size", shape.hidden},
      {"num_hidden_layers", shape.layers},
      {"num_heads", shape.heads},
      {"head_dim", shape.head_dim},
      {"n_groups", shape.kv_heads},
      {"state_size", kStateSize},
      {"conv_kernel", kTaps},
      {"expand", shape.intermediate / shape.hidden},
      {"use_conv_bias", true},
      {"use_bias", false},
      {"hidden_act", "silu"},
      {"layer_norm_epsilon", 1e-5},
      {"vocab_size", shape.vocab},
      {"tie_word_embeddings", shape.tied},
      {"torch_dtype", "bfloat16"},
  };
}

nlohmann::ordered_json llama_config(const KnownShape& shape) {
  return {
      {"model_type", "llama"},
      {"architectures", {"LlamaForCausalLM"}},
      {"hidden_size", shape.hidden},
      {"intermediate_size", shape.intermediate},
      {"num_hidden_layers", shape.layers},
      {"num_attention_heads", shape.heads},
      {"num_key_value_heads", shape.kv_heads},
      {"head_dim", shape.head_dim},
      {"hidden_act", "silu"},
      {"rms_norm_eps", 1e-5},
      {"rope_theta", 500000.0},
      {"max_position_embeddings", 131072},
      {"vocab_size", shape.vocab},
      {"tie_word_embeddings", shape.tied},
      {"torch_dtype", "bfloat16"},
  };
}

nlohmann::ordered_json config_of(const KnownShape& shape, int bits) {
  nlohmann::ordered_json config = shape.family == ShapeFamily::mamba2
                                      ? mamba2_config(shape)
                                      : llama_config(shape);
  if (bits != 16) {
    config["quantization"] = {{"group_size", kGroupSize}, {"bits", bits}};
  }
  return config;
}

void write_text(const fs::path& path, const std::string& text) {
  std::ofstream file(path);
  file << text << "\n";
  if (!file.flush()) {
    throw Error(
        cat("cannot write ", path.string()),
        "the device may be full",
        "name another folder");
  }
}

}  // namespace

void write_random_checkpoint(
    const fs::path& folder, const std::string& shape_name, int bits) {
  const KnownShape& shape = find_shape(shape_name);
  if (bits != 4 && bits != 8 && bits != 16) {
    throw UsageError(
        cat("wrong --bits ", bits),
        "random checkpoints have 4 or 8 bits (affine) or 16 (bf16)",
        "give --bits 4, 8 or 16");
  }
  if (fs::exists(folder) && !fs::is_empty(folder)) {
    throw UsageError(
        cat("the folder ", folder.string(), " is not empty"),
        "a checkpoint's files would mix with what is there",
        "name a new folder");
  }
  fs::create_directories(folder);

  Random random{42};
  nlohmann::ordered_json index;
  index["metadata"] = {{"total_size", 0}};
  uint64_t total = 0;
  int64_t shards = shape.layers / 4 + 1;
  auto write_shard = [&](int64_t number, const WeightMap& map) {
    std::string name =
        fmt::format("model-{:05d}-of-{:05d}.safetensors", number, shards);
    write_safetensors(folder / name, map, {{"format", "mlx"}});
    for (const auto& [key, tensor] : map) {
      index["weight_map"][key] = name;
      total += tensor.bytes;
    }
  };

  WeightMap map;
  bool mamba2 = shape.family == ShapeFamily::mamba2;
  std::string body = shape.body;
  add_matrix(
      map,
      body + (mamba2 ? "embeddings" : "embed_tokens"),
      shape.vocab,
      shape.hidden,
      bits,
      random);
  if (!shape.tied) {
    add_matrix(map, "lm_head", shape.vocab, shape.hidden, bits, random);
  }
  add_norm(map, body + (mamba2 ? "norm_f" : "norm"), shape.hidden);
  write_shard(1, map);
  map = {};
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    std::string stem = cat(body, "layers.", layer, ".");
    auto add_layer = mamba2 ? add_mamba2_layer : add_llama_layer;
    add_layer(map, stem, shape, bits, random);
    if ((layer + 1) % 4 == 0) {
      write_shard(layer / 4 + 2, map);
      map = {};
    }
  }
  index["metadata"]["total_size"] = total;
  write_text(folder / "model.safetensors.index.json", index.dump(1));
  write_text(folder / "config.json", config_of(shape, bits).dump(2));
}

}  // namespace mlxcel::cli
