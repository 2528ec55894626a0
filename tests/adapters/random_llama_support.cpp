#include "adapters/random_llama.h"

#include "core/half.h"
#include "io/safetensors.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

namespace mlxcel::testing {

namespace {

namespace fs = std::filesystem;

void write_values(WeightTensor& tensor, std::byte* data, auto value_of) {
  for (int64_t i = 0; i < element_count(tensor.shape); ++i) {
    float value = float(value_of(i));
    if (tensor.dtype == DType::f64) {
      double wide = value;
      std::memcpy(data + 8 * i, &wide, 8);
    } else if (tensor.dtype == DType::f32) {
      std::memcpy(data + 4 * i, &value, 4);
    } else {
      uint16_t bits =
          tensor.dtype == DType::bf16 ? f32_to_bf16(value) : f32_to_f16(value);
      std::memcpy(data + 2 * i, &bits, 2);
    }
  }
}

// [rows, cols] of a tensor, or of its transpose.
std::vector<double> read(const WeightTensor& tensor, bool transposed) {
  std::vector<float> flat(size_t(element_count(tensor.shape)));
  read_as_f32(tensor, flat.data());
  if (!transposed) {
    return {flat.begin(), flat.end()};
  }
  int64_t rows = tensor.dim(0), cols = tensor.dim(1);
  std::vector<double> out(flat.size());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      out[size_t(j * rows + i)] = double(flat[size_t(i * cols + j)]);
    }
  }
  return out;
}

}  // namespace

RandomLlama::RandomLlama(const fs::path& folder, unsigned seed)
    : folder_(folder), random_(seed + 1) {
  heads_ = pick(1, 2) * 2;
  kv_heads_ = heads_ / pick(1, 2);
  head_dim_ = pick(1, 3) * 8;
  hidden_ = pick(3, 9) * 8;
  inner_ = pick(3, 15) * 8;
  layers_ = pick(1, 3);
  vocab_ = pick(31, 90);
  tied_ = pick(0, 1) == 1;
  DType dtypes[] = {DType::f32, DType::bf16, DType::f16};
  dtype_ = dtypes[pick(0, 2)];

  auto matrix = [&](const std::string& stem, int64_t rows, int64_t in) {
    sites_.push_back({stem, rows, in});
    weights_.set(
        stem + ".weight",
        random_tensor(dtype_, {rows, in}, 1 / std::sqrt(double(in)), 0));
  };
  auto norm = [&](const std::string& stem) {
    weights_.set(stem + ".weight", random_tensor(dtype_, {hidden_}, 0.1, 1));
  };
  matrix("model.embed_tokens", vocab_, hidden_);
  for (int64_t l = 0; l < layers_; ++l) {
    std::string layer = "model.layers." + std::to_string(l) + ".";
    int64_t q = heads_ * head_dim_, kv = kv_heads_ * head_dim_;
    matrix(layer + "self_attn.q_proj", q, hidden_);
    matrix(layer + "self_attn.k_proj", kv, hidden_);
    matrix(layer + "self_attn.v_proj", kv, hidden_);
    matrix(layer + "self_attn.o_proj", hidden_, q);
    matrix(layer + "mlp.gate_proj", inner_, hidden_);
    matrix(layer + "mlp.up_proj", inner_, hidden_);
    matrix(layer + "mlp.down_proj", hidden_, inner_);
    norm(layer + "input_layernorm");
    norm(layer + "post_attention_layernorm");
  }
  norm("model.norm");
  if (!tied_) {
    matrix("lm_head", vocab_, hidden_);
  }
  fs::create_directories(model());
  write_safetensors(model() / "model.safetensors", weights_);
  write_config(model(), dtype_);
}

int64_t RandomLlama::pick(int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random_);
}

double RandomLlama::normal() {
  return std::normal_distribution<double>()(random_);
}

WeightTensor RandomLlama::random_tensor(
    DType dtype, Shape shape, double size, double mean) {
  std::byte* data = nullptr;
  WeightTensor tensor = make_weight(dtype, std::move(shape), &data);
  write_values(tensor, data, [&](int64_t) { return mean + size * normal(); });
  return tensor;
}

void RandomLlama::write_config(const fs::path& folder, DType dtype) const {
  nlohmann::json config = {
      {"model_type", "llama"},
      {"architectures", nlohmann::json::array({"LlamaForCausalLM"})},
      {"hidden_size", hidden_},
      {"intermediate_size", inner_},
      {"num_hidden_layers", layers_},
      {"num_attention_heads", heads_},
      {"num_key_value_heads", kv_heads_},
      {"head_dim", head_dim_},
      {"rms_norm_eps", 1e-5},
      {"vocab_size", vocab_},
      {"rope_theta", 10000.0},
      {"max_position_embeddings", 512},
      {"tie_word_embeddings", tied_},
      {"torch_dtype",
       dtype == DType::f32    ? "float32"
       : dtype == DType::bf16 ? "bfloat16"
                              : "float16"}};
  std::ofstream(folder / "config.json") << config;
}

RandomAdapter RandomLlama::add_adapter() {
  RandomAdapter out;
  out.folder = folder_ / ("adapter" + std::to_string(adapters_++));
  fs::create_directories(out.folder);
  DType dtypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64};
  int64_t alpha = pick(1, 16), rank = pick(1, 8);
  out.factor = double(alpha) / double(rank);
  WeightMap tensors;
  for (const Site& site : sites_) {
    if (pick(0, 3) == 0 && &site != &sites_.back()) {
      continue;  // the last one always, so that there is one
    }
    RandomPair pair{site.stem, site.rows, site.in, pick(1, 9), {}, {}};
    bool embedding = site.stem.ends_with("embed_tokens");
    int64_t layout = pick(0, embedding ? 2 : 1);
    // Small enough that the changed model is still a tame one.
    double size = 0.5 / std::sqrt(double(site.in)) / out.factor;
    auto tensor = [&](int64_t rows, int64_t cols, double scale) {
      return random_tensor(dtypes[pick(0, 3)], {rows, cols}, scale, 0);
    };
    WeightTensor a, b;
    if (layout == 0) {  // [in, rank], [rank, out]
      a = tensor(site.in, pair.rank, 1);
      b = tensor(pair.rank, site.rows, size);
      pair.left = read(b, true);
      pair.right = read(a, true);
    } else if (layout == 1) {  // [rank, in], [out, rank]
      a = tensor(pair.rank, site.in, 1);
      b = tensor(site.rows, pair.rank, size);
      pair.left = read(b, false);
      pair.right = read(a, false);
    } else {  // [vocab, rank], [rank, hidden]
      a = tensor(site.rows, pair.rank, 1);
      b = tensor(pair.rank, site.in, size);
      pair.left = read(a, false);
      pair.right = read(b, false);
    }
    tensors.set(site.stem + ".lora_a", a);
    tensors.set(site.stem + ".lora_b", b);
    out.pairs.push_back(std::move(pair));
  }
  write_safetensors(out.folder / "adapters.safetensors", tensors);
  nlohmann::json config = {
      {"fine_tune_type", "lora"},
      {"lora_parameters", {{"rank", rank}, {"lora_alpha", alpha}}}};
  std::ofstream(out.folder / "adapter_config.json") << config;
  return out;
}

fs::path RandomLlama::write_changed(
    const std::string& name,
    const std::vector<std::pair<const RandomAdapter*, double>>& adapters) {
  WeightMap changed;
  for (const auto& [key, tensor] : weights_) {
    std::vector<double> values = read(tensor, false);
    for (const auto& [adapter, scale] : adapters) {
      for (const RandomPair& pair : adapter->pairs) {
        if (pair.stem + ".weight" != key) {
          continue;
        }
        for (int64_t i = 0; i < pair.rows; ++i) {
          for (int64_t j = 0; j < pair.in; ++j) {
            double sum = 0;
            for (int64_t r = 0; r < pair.rank; ++r) {
              sum += pair.left[size_t(i * pair.rank + r)] *
                     pair.right[size_t(r * pair.in + j)];
            }
            values[size_t(i * pair.in + j)] += scale * adapter->factor * sum;
          }
        }
      }
    }
    std::byte* data = nullptr;
    WeightTensor out = make_weight(DType::f32, tensor.shape, &data);
    write_values(out, data, [&](int64_t i) { return values[size_t(i)]; });
    changed.set(key, out);
  }
  fs::path path = folder_ / name;
  fs::create_directories(path);
  write_safetensors(path / "model.safetensors", changed);
  write_config(path, DType::f32);
  return path;
}

}  // namespace mlxcel::testing
