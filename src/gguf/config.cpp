#include "gguf/convert.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numbers>

namespace mlxcel {

using Json = nlohmann::ordered_json;

namespace {

constexpr const char* kFix = "import a llama-family GGUF file";

int64_t positive(const GgufFile& file, const char* key) {
  auto value = file.get<int64_t>(key);
  if (value < 1 || value > (int64_t(1) << 31)) {
    throw CheckpointError(
        cat("cannot use the GGUF file ", file.name()),
        cat("its metadata key ", key, " is ", value),
        kFix);
  }
  return value;
}

// The decimal number that a file's f32 stands for: 1e-05, not 9.99999975e-06.
double shortest(float value) {
  return std::strtod(fmt::format("{}", value).c_str(), nullptr);
}

// Llama 3's frequency correction, as the converter computes it from
// rope_scaling: divisor of frequency i.
double llama3_divisor(
    double frequency, double factor, double low, double high, double length) {
  double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength < length / high) {
    return 1;
  }
  if (wavelength > length / low) {
    return factor;
  }
  double smooth = (length / wavelength - low) / (high - low);
  return 1 / ((1 - smooth) / factor + smooth);
}

// The file holds divisors instead of the parameters that made them. Published
// models use low 1, high 4 and 8192 positions; the largest divisor is the
// factor. Whatever does not fit them is refused.
Json llama3_scaling(
    const GgufFile& file,
    const GgufTensor& tensor,
    int64_t head_dim,
    double theta) {
  if (tensor.type != GgufType::f32 || tensor.shape != Shape{head_dim / 2}) {
    throw CheckpointError(
        cat("cannot use the GGUF file ", file.name()),
        cat("rope_freqs.weight is ",
            name_of(tensor.type),
            " ",
            to_string(tensor.shape),
            ", not F32 [",
            head_dim / 2,
            "]"),
        kFix);
  }
  std::vector<float> divisors(size_t(head_dim / 2));
  std::memcpy(divisors.data(), tensor.data.data(), tensor.data.size());
  double factor = 1;
  for (float divisor : divisors) {
    factor = std::max(factor, double(divisor));
  }
  constexpr double low = 1, high = 4, length = 8192;
  for (size_t i = 0; i < divisors.size(); ++i) {
    double frequency = std::pow(theta, -2.0 * double(i) / double(head_dim));
    double wanted = llama3_divisor(frequency, factor, low, high, length);
    if (!(std::abs(double(divisors[i]) - wanted) <= 1e-3 * wanted)) {
      throw CheckpointError(
          cat("cannot use the GGUF file ", file.name()),
          cat("rope_freqs.weight[",
              i,
              "] is ",
              divisors[i],
              ", not the ",
              wanted,
              " of llama3 scaling with factor ",
              factor),
          "import the original safetensors checkpoint instead");
    }
  }
  return {
      {"rope_type", "llama3"},
      {"factor", factor},
      {"low_freq_factor", low},
      {"high_freq_factor", high},
      {"original_max_position_embeddings", int64_t(length)}};
}

Json rope_scaling(const GgufFile& file, const GgufLlama& model, double theta) {
  if (const GgufTensor* factors = file.find("rope_freqs.weight")) {
    return llama3_scaling(file, *factors, model.head_dim, theta);
  }
  auto type = file.get_or<std::string>("llama.rope.scaling.type", "none");
  if (type == "none") {
    return nullptr;
  }
  Json out = {
      {"rope_type", type},
      {"factor", shortest(file.get<float>("llama.rope.scaling.factor"))}};
  if (type == "yarn") {
    out["original_max_position_embeddings"] =
        positive(file, "llama.rope.scaling.original_context_length");
  } else if (type != "linear") {
    throw CheckpointError(
        cat("cannot use the GGUF file ", file.name()),
        cat("llama.rope.scaling.type is \"",
            type,
            "\"; none, linear and yarn are supported"),
        "import the original safetensors checkpoint instead");
  }
  return out;
}

}  // namespace

GgufLlama read_gguf_llama(const GgufFile& file) {
  auto architecture = file.get<std::string>("general.architecture");
  if (architecture != "llama") {
    throw CheckpointError(
        cat("cannot import the GGUF file ", file.name()),
        cat("its architecture is \"",
            architecture,
            "\"; only the llama family can be imported"),
        "use the model's safetensors checkpoint instead");
  }
  if (file.get_or<int64_t>("llama.expert_count", 0) != 0) {
    throw CheckpointError(
        cat("cannot import the GGUF file ", file.name()),
        "it is a mixture of experts (llama.expert_count is not 0)",
        "use the model's safetensors checkpoint instead");
  }
  GgufLlama model;
  model.layers = positive(file, "llama.block_count");
  model.hidden_size = positive(file, "llama.embedding_length");
  model.intermediate_size = positive(file, "llama.feed_forward_length");
  model.heads = positive(file, "llama.attention.head_count");
  model.kv_heads = file.metadata("llama.attention.head_count_kv") != nullptr
                       ? positive(file, "llama.attention.head_count_kv")
                       : model.heads;
  model.head_dim = file.metadata("llama.attention.key_length") != nullptr
                       ? positive(file, "llama.attention.key_length")
                       : model.hidden_size / model.heads;
  auto rotated =
      file.get_or<int64_t>("llama.rope.dimension_count", model.head_dim);
  auto value_dim =
      file.get_or<int64_t>("llama.attention.value_length", model.head_dim);
  // Bounds keep products of the sizes far from overflow.
  if (model.layers > 10000 || model.heads > (1 << 16) ||
      model.head_dim > (1 << 16) || model.head_dim % 2 != 0 ||
      model.heads % model.kv_heads != 0 || rotated != model.head_dim ||
      value_dim != model.head_dim ||
      (file.metadata("llama.attention.key_length") == nullptr &&
       model.hidden_size % model.heads != 0)) {
    throw CheckpointError(
        cat("cannot import the GGUF file ", file.name()),
        cat("its attention sizes do not fit together: ",
            model.heads,
            " heads, ",
            model.kv_heads,
            " of keys, head size ",
            model.head_dim,
            " (values ",
            value_dim,
            ", rotated ",
            rotated,
            "), hidden size ",
            model.hidden_size),
        kFix);
  }
  const GgufTensor* embedding = file.find("token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2) {
    throw CheckpointError(
        cat("cannot import the GGUF file ", file.name()),
        "it has no matrix token_embd.weight",
        kFix);
  }
  model.vocab_size = embedding->shape[0];
  model.tied_head = file.find("output.weight") == nullptr;
  model.attention_bias = file.find("blk.0.attn_q.bias") != nullptr;
  model.mlp_bias = file.find("blk.0.ffn_up.bias") != nullptr;
  return model;
}

Json gguf_config(const GgufFile& file, const GgufLlama& model) {
  double theta = shortest(file.get_or<float>("llama.rope.freq_base", 10000));
  Json config;
  config["architectures"] = {"LlamaForCausalLM"};
  config["model_type"] = "llama";
  config["hidden_size"] = model.hidden_size;
  config["intermediate_size"] = model.intermediate_size;
  config["num_hidden_layers"] = model.layers;
  config["num_attention_heads"] = model.heads;
  config["num_key_value_heads"] = model.kv_heads;
  config["head_dim"] = model.head_dim;
  config["hidden_act"] = "silu";
  config["attention_bias"] = model.attention_bias;
  config["mlp_bias"] = model.mlp_bias;
  config["rms_norm_eps"] =
      shortest(file.get<float>("llama.attention.layer_norm_rms_epsilon"));
  config["rope_theta"] = theta;
  if (Json scaling = rope_scaling(file, model, theta); !scaling.is_null()) {
    config["rope_scaling"] = scaling;
  }
  config["max_position_embeddings"] = positive(file, "llama.context_length");
  config["vocab_size"] = model.vocab_size;
  config["tie_word_embeddings"] = model.tied_head;
  return config;
}

}  // namespace mlxcel
