#include "cli/random_shapes.h"

#include "core/error.h"
#include "io/json.h"
#include "loading/config_file.h"

#include <nlohmann/json.hpp>

namespace mlxcel::cli {

namespace {

struct NamedShape {
  const char* name;
  const char* config;
};

// From the published configs of Llama 3.2 1B and 3.1 8B, Mamba 2 1.3B,
// Qwen3-30B-A3B, Moonlight 16B-A3B and Qwen3-Next-80B-A3B. The mixtures have
// fewer layers, the last one fewer experts, so that 4 bits take 3 to 6 GB; what
// a token reads of a layer is as published.
constexpr NamedShape kShapes[] = {
    {"1b", R"({
  "model_type": "llama", "architectures": ["LlamaForCausalLM"],
  "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
  "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
  "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
  "max_position_embeddings": 131072, "vocab_size": 128256,
  "tie_word_embeddings": true, "torch_dtype": "bfloat16"})"},
    {"8b", R"({
  "model_type": "llama", "architectures": ["LlamaForCausalLM"],
  "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
  "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
  "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
  "max_position_embeddings": 131072, "vocab_size": 128256,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16"})"},
    {"mamba2", R"({
  "model_type": "mamba2", "architectures": ["Mamba2ForCausalLM"],
  "hidden_size": 2048, "num_hidden_layers": 48, "num_heads": 64,
  "head_dim": 64, "n_groups": 1, "state_size": 128, "conv_kernel": 4,
  "expand": 2, "use_conv_bias": true, "use_bias": false, "hidden_act": "silu",
  "layer_norm_epsilon": 1e-5, "vocab_size": 50288,
  "tie_word_embeddings": true, "torch_dtype": "bfloat16"})"},
    {"moe", R"({
  "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"],
  "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 16,
  "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
  "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": true,
  "moe_intermediate_size": 768, "decoder_sparse_step": 1,
  "mlp_only_layers": [], "hidden_act": "silu", "rms_norm_eps": 1e-6,
  "rope_theta": 1000000.0, "max_position_embeddings": 40960,
  "vocab_size": 151936, "tie_word_embeddings": false,
  "torch_dtype": "bfloat16"})"},
    {"latent", R"({
  "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"],
  "hidden_size": 2048, "intermediate_size": 11264, "num_hidden_layers": 9,
  "num_attention_heads": 16, "num_key_value_heads": 16, "kv_lora_rank": 512,
  "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
  "v_head_dim": 128, "n_routed_experts": 64, "n_shared_experts": 2,
  "num_experts_per_tok": 6, "moe_intermediate_size": 1408, "n_group": 1,
  "topk_group": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
  "norm_topk_prob": true, "routed_scaling_factor": 2.446,
  "first_k_dense_replace": 1, "moe_layer_freq": 1, "hidden_act": "silu",
  "rms_norm_eps": 1e-5, "rope_theta": 50000.0,
  "max_position_embeddings": 8192, "vocab_size": 163840,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16"})"},
    {"delta", R"({
  "model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"],
  "hidden_size": 2048, "intermediate_size": 5120, "num_hidden_layers": 12,
  "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
  "partial_rotary_factor": 0.25, "full_attention_interval": 4,
  "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
  "linear_value_head_dim": 128, "linear_num_key_heads": 16,
  "linear_num_value_heads": 32, "num_experts": 128,
  "num_experts_per_tok": 10, "norm_topk_prob": true,
  "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
  "decoder_sparse_step": 1, "mlp_only_layers": [], "hidden_act": "silu",
  "rms_norm_eps": 1e-6, "rope_theta": 10000000.0,
  "max_position_embeddings": 262144, "vocab_size": 151936,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16"})"},
};

}  // namespace

std::string random_shape_names() {
  std::string names;
  for (const NamedShape& shape : kShapes) {
    names += names.empty() ? "" : ", ";
    names += shape.name;
  }
  return names;
}

nlohmann::ordered_json random_shape_config(const std::string& name) {
  if (name.ends_with(".json")) {
    nlohmann::ordered_json config = sanitize_config(read_text_file(name), name);
    config.erase("text_config");  // its keys stand at the top now
    config.erase("vision_config");
    config.erase("quantization");
    config.erase("quantization_config");
    return config;
  }
  for (const NamedShape& shape : kShapes) {
    if (name == shape.name) {
      return nlohmann::ordered_json::parse(shape.config);
    }
  }
  throw UsageError(
      cat("unknown shape ", name),
      "no random checkpoint of this name can be made",
      cat("known: ", random_shape_names(), ", or the path of a config.json"));
}

}  // namespace mlxcel::cli
