// Nemotron H: each layer is one part behind a norm: a Mamba 2 mixer, attention
// without rotation, an MLP of squared relu, or a mixture of such.
#include "models/config_reading_layers.h"
#include "models/config_reading_moe.h"
#include "models/config_reading_recurrent.h"
#include "models/families/families.h"
#include "models/hybrid_names.h"
#include "models/latent_moe.h"

#include <limits>

namespace mlxcel {

namespace {

BlockSpec nemotron_h_block(BlockSpec block, char letter) {
  if (letter != 'M') {
    block.mixer = nullptr;
  }
  bool mixes = letter == 'M' || letter == '*';
  block.halves = mixes ? Halves::mixer_only : Halves::feed_forward_only;
  if (letter != 'E') {
    block.moe.reset();
    block.feed_forward = nullptr;
  }
  return block;
}

DecoderSpec nemotron_h_decoder(const Config& given) {
  require_silu(given, "mamba_hidden_act");
  std::string letters = layer_letters(given);
  Config config = with_defaults(given, {{"num_hidden_layers", letters.size()}});
  bool bias = config.get_or("mlp_bias", false);
  BlockSpec parts{
      .norm = {.eps = config.get_or("layer_norm_epsilon", 1e-5f)},
      .attention = grouped_query_attention(config),
      .mlp = plain_mlp(
          config,
          "mlp_hidden_act",
          "relu2",
          bias ? MlpBias::all : MlpBias::none)};
  parts.attention.rope = nullptr;
  parts.attention.bias = AttentionBias::none;  // whatever attention_bias says
  auto mixer = state_space_mixer(
      config,
      {.heads = "mamba_num_heads",
       .head_dim = "mamba_head_dim",
       .groups = "n_groups",
       .state_size = "ssm_state_size",
       .taps = "conv_kernel",
       .convolution_bias = "use_conv_bias"},
      parts.norm.eps);
  // As transformers; mlx-lm takes time_step_limit, open in published files.
  mixer->limits = {
      config.get_or("mamba_dt_min", config.get_or("time_step_min", 1e-3f)),
      std::numeric_limits<float>::infinity()};
  bool mixer_bias = config.get_or("use_bias", false);
  mixer->bias = {mixer_bias, mixer_bias};
  parts.mixer = mixer;
  if (config.get_or("n_routed_experts", 0) > 0) {
    MoeSpec moe = deepseek3_moe(config);
    moe.expert = moe.shared = parts.mlp;
    moe.expert.bias = MlpBias::none;
    moe.expert.intermediate_size = config.get<int>("moe_intermediate_size");
    moe.shared.intermediate_size =
        config.get<int>("moe_shared_expert_intermediate_size");
    parts.moe = moe;
    if (config.has("moe_latent_size")) {
      auto latent = std::make_shared<LatentMoeSpec>();
      latent->moe = moe;
      latent->size = config.get<int>("moe_latent_size");
      latent->bias = parts.mlp.bias;
      parts.feed_forward = latent;
    }
  }
  DecoderSpec decoder = uniform_decoder(config, parts, HeadKind::own);
  for (size_t layer = 0; layer < decoder.blocks.size(); ++layer) {
    decoder.blocks[layer] = nemotron_h_block(parts, letters[layer]);
  }
  return decoder;
}

}  // namespace

const Family nemotron_h = {
    .name = "Nemotron H",
    .type = "NemotronH",
    .model_types = {"nemotron_h"},
    .architectures = {"NemotronHForCausalLM"},
    .decoder = nemotron_h_decoder,
    .defaults =
        {{"conv_kernel", 4},
         {"head_dim", 128},
         {"mamba_head_dim", 64},
         {"mamba_num_heads", 128},
         {"moe_intermediate_size", 7688},
         {"moe_shared_expert_intermediate_size", 7688},
         {"n_groups", 8},
         {"num_experts_per_tok", 2},
         {"ssm_state_size", 128}},
    .names = nemotron_h_names(),
    .features =
        {"partial_rotary_factor",
         "attention_bias",
         "mlp_bias",
         "use_bias",
         "n_routed_experts",
         "moe_latent_size",
         "sliding_window",  // named in configs, but no layer of the class
                            // slides
         "layer_types"},
    .dropped = {"mtp.*"},
};

}  // namespace mlxcel
