// Falcon H1: a Mamba 2 mixer beside attention in every layer, with fixed
// multipliers throughout.
#include "models/config_reading_recurrent.h"
#include "models/families/families.h"
#include "models/wrapped_parts.h"

#include <algorithm>

namespace mlxcel {

namespace {

std::vector<float> multipliers(
    const Config& config, const char* key, size_t count) {
  auto out = config.get_or(key, std::vector<float>(count, 1));
  if (out.size() != count) {
    throw ConfigError(
        cat(config.file(), ": ", key, " has ", out.size(), " numbers"),
        cat("the model has ", count, " such multipliers"),
        "take config.json from the model's original publisher");
  }
  return out;
}

DecoderSpec falcon_h1_decoder(const Config& config) {
  require_silu(config, "hidden_act");
  BlockSpec block = gated_block(config);
  auto mlp = multipliers(config, "mlp_multipliers", 2);
  block.mlp.gate_scale = mlp[0];
  block.mlp.output_scale = mlp[1];

  auto mixer = state_space_mixer(config, {}, block.norm.eps);
  auto scales = multipliers(config, "ssm_multipliers", 5);
  std::copy(scales.begin(), scales.end(), mixer->multipliers.begin());
  mixer->bias = {
      config.get_or("mamba_proj_bias", false),
      config.get_or("projectors_bias", false)};
  if (!config.get_or("mamba_rms_norm", false)) {
    mixer->gate = GateForm::silu;
  } else if (config.get_or("mamba_norm_before_gate", true)) {
    mixer->gate = GateForm::silu_of_norm;
  }
  auto both = std::make_shared<ParallelMixerSpec>();
  both->mixer = mixer;
  both->attention = block.attention;
  // On the keys in the model; scores are linear in them.
  both->attention.scale *= config.get_or("key_multiplier", 1.0f);
  both->mixer_in = config.get_or("ssm_in_multiplier", 1.0f);
  both->mixer_scale = config.get_or("ssm_out_multiplier", 1.0f);
  both->attention_in = config.get_or("attention_in_multiplier", 1.0f);
  both->attention_scale = config.get_or("attention_out_multiplier", 1.0f);
  block.mixer = both;

  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::own);
  decoder.embedding_scale = config.get_or("embedding_multiplier", 1.0f);
  decoder.extras.logit_scale = config.get_or("lm_head_multiplier", 1.0f);
  return decoder;
}

}  // namespace

const Family falcon_h1 = {
    .name = "Falcon H1",
    .type = "FalconH1",
    .model_types = {"falcon_h1"},
    .architectures = {"FalconH1ForCausalLM"},
    .decoder = falcon_h1_decoder,
    .defaults =
        {{"mamba_d_conv", 4},
         {"mamba_d_head", 8},
         {"mamba_d_state", 256},
         {"mamba_n_groups", 1},
         {"rms_norm_eps", 1e-5}},
    .names = hf_decoder_names(join(
        {{{"final_layernorm", {"final_norm"}},
          {"layers.{l}.pre_ff_layernorm", {"layers.{l}.mlp_norm"}},
          {"layers.{l}.feed_forward.gate_proj", {"layers.{l}.mlp.gate"}},
          {"layers.{l}.feed_forward.up_proj", {"layers.{l}.mlp.up"}},
          {"layers.{l}.feed_forward.down_proj", {"layers.{l}.mlp.down"}}},
         state_space_names("layers.{l}.mamba")})),
    .features =
        {"attention_bias", "mlp_bias", "embedding_multiplier", "layer_types"},
};

}  // namespace mlxcel
