// GLM 4 MoE (4.5): half of each head turned, norms on each head of q and k
// where use_qk_norm says so, the routing of DeepSeek 3.
#include "models/config_reading_moe.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec glm4_moe_decoder(const Config& config) {
  BlockSpec block = gated_block(config, {.partial = 0.5});
  block.attention.bias = config.get_or("attention_bias", false)
                             ? AttentionBias::qkv
                             : AttentionBias::none;
  return deepseek3_decoder(config, block);
}

}  // namespace

const Family glm4_moe = {
    .name = "GLM 4 MoE",
    .type = "Glm4Moe",
    .model_types = {"glm4_moe"},
    .architectures = {"Glm4MoeForCausalLM"},
    .decoder = glm4_moe_decoder,
    .defaults =
        {{"first_k_dense_replace", 1},
         {"moe_intermediate_size", 1408},
         {"n_routed_experts", 128},
         {"n_shared_experts", 1},
         {"num_experts_per_tok", 8},
         {"rms_norm_eps", 1e-5}},
    .names = hf_decoder_names(deepseek_moe_names()),
    .features =
        {"partial_rotary_factor",
         "attention_bias",
         "use_qk_norm",
         "n_routed_experts"},
    .further_layers = FurtherLayers::dropped,
};

}  // namespace mlxcel
