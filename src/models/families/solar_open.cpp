// Solar Open: Llama with the routing of DeepSeek 3 in all layers.
#include "models/config_reading_layers.h"
#include "models/config_reading_moe.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec solar_open_decoder(const Config& config) {
  BlockSpec block = gated_block(config, {.theta = 1e6});
  block.attention.bias =
      attention_bias(config.get_or("attention_bias", false), false);
  // The class reads neither: every layer mixes, and no head has a norm.
  return deepseek3_decoder(
      with_values(
          config, {{"first_k_dense_replace", 0}, {"use_qk_norm", false}}),
      block);
}

}  // namespace

const Family solar_open = {
    .name = "Solar Open",
    .type = "SolarOpen",
    .model_types = {"solar_open"},
    .architectures = {"SolarOpenForCausalLM"},
    .decoder = solar_open_decoder,
    .defaults =
        {{"head_dim", 128},
         {"moe_intermediate_size", 1280},
         {"n_routed_experts", 128},
         {"n_shared_experts", 1},
         {"rms_norm_eps", 1e-5}},
    .names = hf_decoder_names(deepseek_moe_names()),
    .features = {"attention_bias", "use_qk_norm", "n_routed_experts"},
};

}  // namespace mlxcel
