// GPT-NeoX (Pythia): layer norms, biases, a plain MLP beside the attention,
// each under its own norm; part of each head turns; q, k and v packed head by
// head.
#include "core/error.h"
#include "models/config_reading.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

// The published class reads rotary_emb_base alone.
void refuse_other_base(const Config& config) {
  double base = config.get_or("rotary_emb_base", 10000.0);
  double theta = config.get_or("rope_theta", base);
  if (theta != base) {
    throw ConfigError(
        cat(config.file(), ": rope_theta ", theta, " is not supported"),
        cat("GPT-NeoX reads its base from rotary_emb_base, here ", base),
        "keep the one that the model was trained with, as rotary_emb_base");
  }
}

DecoderSpec gpt_neox_decoder(const Config& published) {
  refuse_other_base(published);
  Config config = overridden(
      published,
      {{"rotary_emb_base", "rope_theta"},
       {"rotary_pct", "partial_rotary_factor"}});
  BlockSpec block{
      .norms = config.get_or("use_parallel_residual", true)
                   ? NormPlacement::parallel_two_norms
                   : NormPlacement::pre,
      .norm = layer_norm(config, "layer_norm_eps"),
      .attention = grouped_query_attention(config, {.partial = 0.25}),
      .mlp = plain_mlp(config, "hidden_act", "gelu", MlpBias::all)};
  block.attention.bias = config.get_or("attention_bias", true)
                             ? AttentionBias::all
                             : AttentionBias::none;
  return uniform_decoder(config, block, HeadKind::own);
}

FamilyNames gpt_neox_names() {
  FamilyNames names = hf_decoder_names({
      {"embed_in", {"embedding"}},
      split_groups(
          "layers.{l}.attention.query_key_value",
          {"layers.{l}.attention.q",
           "layers.{l}.attention.k",
           "layers.{l}.attention.v"}),
      {"layers.{l}.attention.dense", {"layers.{l}.attention.o"}},
      {"layers.{l}.mlp.dense_h_to_4h", {"layers.{l}.mlp.up"}},
      {"layers.{l}.mlp.dense_4h_to_h", {"layers.{l}.mlp.down"}},
      {"final_layer_norm", {"final_norm"}},
      {"embed_out", {"head"}},
  });
  names.spellings = {{"gpt_neox.", ""}, {"model.", ""}};
  return names;
}

}  // namespace

const Family gpt_neox = {
    .name = "GPT-NeoX",
    .type = "GptNeoX",
    .model_types = {"gpt_neox"},
    .architectures = {"GPTNeoXForCausalLM"},
    .decoder = gpt_neox_decoder,
    .names = gpt_neox_names(),
    .features =
        {"partial_rotary_factor", "use_parallel_residual", "attention_bias"},
    .dropped =
        {"*.attention.bias",
         "*.attention.masked_bias",
         "*.attention.rotary_emb.inv_freq"},
};

}  // namespace mlxcel
