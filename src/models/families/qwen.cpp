// Qwen (the first): Llama under GPT-2's names, with a bias on q, k and v.
#include "models/config_reading.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec qwen_decoder(const Config& published) {
  Config config = renamed(
      published,
      {{"layer_norm_epsilon", "rms_norm_eps"},
       {"kv_channels", "head_dim"},
       {"rotary_emb_base", "rope_theta"}});
  BlockSpec block = gated_block(config);
  // The published size counts gate and up together.
  block.mlp.intermediate_size /= 2;
  bool biases = !is_set(config, "no_bias", true);
  block.attention.bias = biases ? AttentionBias::all : AttentionBias::qkv;
  block.mlp.bias = biases ? MlpBias::all : MlpBias::none;
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::own);
  decoder.extras.head.bias = biases ? HeadBias::stored : HeadBias::none;
  return decoder;
}

FamilyNames qwen_names() {
  FamilyNames names = hf_decoder_names({
      {"wte", {"embedding"}},
      {"h.{l}.ln_1", {"layers.{l}.attention_norm"}},
      split_rows(
          "h.{l}.attn.c_attn",
          {"layers.{l}.attention.q",
           "layers.{l}.attention.k",
           "layers.{l}.attention.v"}),
      {"h.{l}.attn.c_proj", {"layers.{l}.attention.o"}},
      {"h.{l}.ln_2", {"layers.{l}.mlp_norm"}},
      {"h.{l}.mlp.w2", {"layers.{l}.mlp.gate"}},
      {"h.{l}.mlp.w1", {"layers.{l}.mlp.up"}},
      {"h.{l}.mlp.c_proj", {"layers.{l}.mlp.down"}},
      {"ln_f", {"final_norm"}},
  });
  names.spellings = {{"transformer.", ""}};
  return names;
}

}  // namespace

const Family qwen = {
    .name = "Qwen",
    .type = "Qwen",
    .model_types = {"qwen"},
    .architectures = {"QWenLMHeadModel"},
    .decoder = qwen_decoder,
    .defaults = {{"layer_norm_epsilon", 1e-6}},
    .names = qwen_names(),
    .dropped = {"*.rotary_emb.inv_freq"},
};

}  // namespace mlxcel
