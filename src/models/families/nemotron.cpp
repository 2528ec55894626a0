// Nemotron: layer norms whose weight counts from one, a plain MLP of squared
// relu, half of each head turned.
#include "models/config_reading.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec nemotron_decoder(const Config& config) {
  NormSpec norm = layer_norm(config, "norm_eps");
  norm.weight_offset = 1;
  bool bias = config.get_or("mlp_bias", false);
  return uniform_decoder(
      config,
      {.norm = norm,
       .attention = grouped_query_attention(config, {.partial = 0.5}),
       .mlp = plain_mlp(
           config, "hidden_act", "relu2", bias ? MlpBias::all : MlpBias::none)},
      HeadKind::own);
}

}  // namespace

const Family nemotron = {
    .name = "Nemotron",
    .type = "Nemotron",
    .model_types = {"nemotron"},
    .architectures = {"NemotronForCausalLM"},
    .decoder = nemotron_decoder,
    .names = hf_decoder_names(),
    .features = {"partial_rotary_factor", "attention_bias", "mlp_bias"},
};

}  // namespace mlxcel
