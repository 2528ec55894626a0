// GPT-OSS: every second layer slides, each head has a sink, and all layers are
// mixtures of clamped SwiGLUs with biases throughout.
#include "models/config_reading_layers.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

// What the reference's class takes where the file is silent.
Config gpt_oss_config(const Config& given) {
  Config config = with_defaults(
      given,
      {{"num_key_value_heads", 8},
       {"head_dim", 64},
       {"num_local_experts", 128},
       {"num_experts_per_tok", 4},
       {"intermediate_size", 2880},
       {"rms_norm_eps", 1e-5},
       {"sliding_window", 128},
       {"attention_bias", true}});
  // Null is the plain rotation, as MLX reads it.
  if (given.json().contains("rope_scaling") ||
      given.json().contains("rope_parameters")) {
    return config;
  }
  return with_values(
      config,
      {{"rope_scaling",
        {{"rope_type", "yarn"},
         {"factor", 32.0},
         {"beta_fast", 32.0},
         {"beta_slow", 1.0},
         {"truncate", false},
         {"original_max_position_embeddings", 4096}}}});
}

DecoderSpec gpt_oss_decoder(const Config& given) {
  Config config = gpt_oss_config(given);
  BlockSpec block{
      .norm = rms_norm(config),
      .attention = grouped_query_attention(config, {.theta = 150000})};
  block.attention.extras.scores.sinks = true;
  block.moe = MoeSpec{
      .experts = config.get<int>("num_local_experts"),
      .experts_per_token = config.get<int>("num_experts_per_tok"),
      .expert =
          {.intermediate_size = config.get<int>("intermediate_size"),
           .bias = MlpBias::all,
           .clamp =
               {.alpha = config.get_or("swiglu_alpha", 1.702f),
                .limit = config.get_or("swiglu_limit", 7.0f)}},
      .routing = {.shares = Shares::renormalized},
      .router_bias = RouterBias::logits};
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::own);
  slide_layers(config, decoder, [](int layer) { return layer % 2 == 0; });
  return decoder;
}

FamilyNames gpt_oss_names() {
  const std::string experts = "layers.{l}.mlp.experts.";
  const std::string role = "layers.{l}.moe.experts.{e}.";
  FamilyNames names = hf_decoder_names(
      {{"layers.{l}.self_attn.sinks", {"layers.{l}.attention.sinks"}},
       {"layers.{l}.mlp.router", {"layers.{l}.moe.router"}},
       stack_experts(experts + "gate_proj", role + "gate"),
       stack_experts(experts + "up_proj", role + "up"),
       stack_experts(experts + "down_proj", role + "down")});
  names.stacks = {
      {.stem = experts + "gate_up_proj",
       .parts = {experts + "gate_proj", experts + "up_proj"},
       .order = RowOrder::in_turn},
      {.stem = experts + "down_proj", .parts = {experts + "down_proj"}}};
  return names;
}

}  // namespace

const Family gpt_oss = {
    .name = "GPT-OSS",
    .type = "GptOss",
    .model_types = {"gpt_oss"},
    .architectures = {"GptOssForCausalLM"},
    .decoder = gpt_oss_decoder,
    .names = gpt_oss_names(),
    .features =
        {"attention_bias",
         "sliding_window",
         "layer_types",
         "num_local_experts"},
};

}  // namespace mlxcel
