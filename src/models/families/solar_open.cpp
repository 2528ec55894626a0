// Solar Open: Llama with the routing of DeepSeek 3 in all layers.
#include "models/config_reading_moe.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec solar_open_decoder(const Config& config) {
  return deepseek3_decoder(config, gated_block(config, {.theta = 1e6}));
}

}  // namespace

const Family solar_open = {
    .name = "Solar Open",
    .type = "SolarOpen",
    .model_types = {"solar_open"},
    .architectures = {"SolarOpenForCausalLM"},
    .decoder = solar_open_decoder,
    .names = hf_decoder_names(deepseek_moe_names()),
    .features = {"attention_bias", "use_qk_norm", "n_routed_experts"},
};

}  // namespace mlxcel
