// StableLM: layer norms, a quarter of each head turned; use_parallel_residual
// puts the MLP beside the attention under the same norm.
#include "models/config_reading.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec stablelm_decoder(const Config& config) {
  BlockSpec block{
      .norms = config.get_or("use_parallel_residual", false)
                   ? NormPlacement::parallel
                   : NormPlacement::pre,
      .norm = layer_norm(config, "layer_norm_eps"),
      .attention = grouped_query_attention(config, {.partial = 0.25}),
      .mlp = gated_mlp(config)};
  block.attention.bias = config.get_or("use_qkv_bias", false)
                             ? AttentionBias::qkv
                             : AttentionBias::none;
  if (config.get_or("qk_layernorm", false)) {
    block.attention.qk_norm = QkNorm::each_head;
  }
  return uniform_decoder(config, block, HeadKind::own);
}

}  // namespace

const Family stablelm = {
    .name = "StableLM",
    .type = "StableLM",
    .model_types = {"stablelm", "stablelm_epoch"},
    .architectures = {"StableLmForCausalLM", "StableLMEpochForCausalLM"},
    .decoder = stablelm_decoder,
    .names = hf_decoder_names(
        {{"layers.{l}.self_attn.q_layernorm.norms.{e}",
          {"layers.{l}.attention.q_norms.{e}"}},
         {"layers.{l}.self_attn.k_layernorm.norms.{e}",
          {"layers.{l}.attention.k_norms.{e}"}}}),
    .features =
        {"partial_rotary_factor", "use_parallel_residual", "qk_layernorm"},
    .dropped = {"*.rotary_emb.inv_freq"},
};

}  // namespace mlxcel
