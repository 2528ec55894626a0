// Solar Open: Llama with the routing of DeepSeek 3 in all layers.
#include "models/config_reading_moe.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec solar_open_decoder(const Config& config) {
  BlockSpec block = gated_block(config);
  if (config.get_or("use_qk_norm", false)) {
    block.attention.qk_norm = QkNorm::per_head;
  }
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::own);
  mix_after_dense(config, decoder, deepseek3_moe(config));
  return decoder;
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
