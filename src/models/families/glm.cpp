// GLM 4 (2024): Llama with half of each head turned in neighbouring pairs and a
// bias on q, k and v.
#include "models/config_reading_layers.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec glm_decoder(const Config& config) {
  return uniform_decoder(config, glm_block(config), HeadKind::own);
}

}  // namespace

const Family glm = {
    .name = "GLM",
    .type = "Glm",
    .model_types = {"glm"},
    .architectures = {"GlmForCausalLM"},
    .decoder = glm_decoder,
    .defaults =
        {{"head_dim", 128},
         {"num_key_value_heads", 2},
         {"rms_norm_eps", 1.5625e-7}},
    .names = hf_decoder_names({fused_gate_up("layers.{l}.mlp.gate_up_proj")}),
    .features = {"partial_rotary_factor", "attention_bias"},
    .dropped = {"*.rotary_emb.inv_freq"},
};

}  // namespace mlxcel
