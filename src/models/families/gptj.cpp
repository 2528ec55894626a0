// GPT-J: attention and a plain MLP beside each other under one layer norm;
// neighbouring features of the first rotary_dim turned; a bias on the head.
#include "core/error.h"
#include "models/config_reading_layers.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

// The published class has one base, 10000, and no scaling.
void refuse_other_rotation(const Config& config) {
  for (const char* key : {"rope_theta", "rope_scaling", "rope_parameters"}) {
    if (config.has(key) && config.json().at(key) != 10000) {
      throw ConfigError(
          cat(config.file(), ": \"", key, "\" is not supported for GPT-J"),
          "its base is 10000, without scaling, and it reads no such key",
          "check model_type, or take config.json from the original publisher");
    }
  }
}

DecoderSpec gptj_decoder(const Config& published) {
  refuse_other_rotation(published);
  Config config = gpt2_config(published);
  double dims = config.get_or("rotary_dim", 64);
  double partial = dims / head_counts(config).dim;
  config = with_values(config, {{"partial_rotary_factor", partial}});
  BlockSpec block{
      .norms = NormPlacement::parallel,
      .norm = layer_norm(config, "layer_norm_epsilon"),
      .attention = grouped_query_attention(config, {.interleaved = true}),
      .mlp =
          plain_mlp(config, "activation_function", "gelu_new", MlpBias::all)};
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::own);
  decoder.extras.head.bias = HeadBias::stored;
  return decoder;
}

FamilyNames gptj_names() {
  FamilyNames names = hf_decoder_names({
      {"wte", {"embedding"}},
      {"h.{l}.ln_1", {"layers.{l}.attention_norm"}},
      {"h.{l}.attn.q_proj", {"layers.{l}.attention.q"}},
      {"h.{l}.attn.k_proj", {"layers.{l}.attention.k"}},
      {"h.{l}.attn.v_proj", {"layers.{l}.attention.v"}},
      {"h.{l}.attn.out_proj", {"layers.{l}.attention.o"}},
      {"h.{l}.mlp.fc_in", {"layers.{l}.mlp.up"}},
      {"h.{l}.mlp.fc_out", {"layers.{l}.mlp.down"}},
      {"ln_f", {"final_norm"}},
  });
  names.spellings = {{"transformer.", ""}, {"model.", ""}};
  return names;
}

}  // namespace

const Family gptj = {
    .name = "GPT-J",
    .type = "GptJ",
    .model_types = {"gptj"},
    .architectures = {"GPTJForCausalLM"},
    .decoder = gptj_decoder,
    .names = gptj_names(),
    .dropped = {"*.attn.bias", "*.attn.masked_bias"},
};

}  // namespace mlxcel
