// GLM 4 (0414): GLM with norms on both sides of each half.
#include "models/config_reading_layers.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec glm4_decoder(const Config& config) {
  BlockSpec block = glm_block(config);
  block.norms = NormPlacement::sandwich;
  return uniform_decoder(config, block, HeadKind::own);
}

}  // namespace

const Family glm4 = {
    .name = "GLM 4",
    .type = "Glm4",
    .model_types = {"glm4"},
    .architectures = {"Glm4ForCausalLM"},
    .decoder = glm4_decoder,
    .defaults =
        {{"head_dim", 128},
         {"num_key_value_heads", 2},
         {"rms_norm_eps", 1.5625e-7}},
    .names = hf_decoder_names({
        {"layers.{l}.post_self_attn_layernorm",
         {"layers.{l}.attention_post_norm"}},
        {"layers.{l}.post_mlp_layernorm", {"layers.{l}.mlp_post_norm"}},
        fused_gate_up("layers.{l}.mlp.gate_up_proj"),
    }),
    .features = {"partial_rotary_factor", "attention_bias"},
    .dropped = {"*.rotary_emb.inv_freq"},
};

}  // namespace mlxcel
