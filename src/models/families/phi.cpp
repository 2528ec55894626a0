// Phi 1 and 2: attention and a plain MLP beside each other under one layer
// norm, biases everywhere, half of each head turned.
#include "models/config_reading.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec phi_decoder(const Config& config) {
  BlockSpec block{
      .norms = NormPlacement::parallel,
      .norm = layer_norm(config, "layer_norm_eps"),
      .attention = grouped_query_attention(config, {.partial = 0.5}),
      .mlp = plain_mlp(config, "hidden_act", "gelu_new", MlpBias::all)};
  block.attention.bias = AttentionBias::all;
  if (config.get_or("qk_layernorm", false)) {
    block.attention.qk_norm = QkNorm::per_head;
  }
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::own);
  decoder.extras.head.bias = HeadBias::stored;
  return decoder;
}

}  // namespace

const Family phi = {
    .name = "Phi",
    .type = "Phi",
    .model_types = {"phi"},
    .architectures = {"PhiForCausalLM"},
    .decoder = phi_decoder,
    .names = hf_decoder_names({
        {"layers.{l}.self_attn.dense", {"layers.{l}.attention.o"}},
        {"layers.{l}.self_attn.q_layernorm", {"layers.{l}.attention.q_norm"}},
        {"layers.{l}.self_attn.k_layernorm", {"layers.{l}.attention.k_norm"}},
        {"layers.{l}.mlp.fc1", {"layers.{l}.mlp.up"}},
        {"layers.{l}.mlp.fc2", {"layers.{l}.mlp.down"}},
        {"final_layernorm", {"final_norm"}},
    }),
    .features = {"partial_rotary_factor", "qk_layernorm"},
    .dropped = {"*.rotary_emb.inv_freq"},
};

}  // namespace mlxcel
