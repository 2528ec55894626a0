// DeepSeek (the first): Llama with a mixture of experts after the first layers.
#include "models/config_reading_moe.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec deepseek_decoder(const Config& config) {
  DecoderSpec decoder =
      uniform_decoder(config, gated_block(config), HeadKind::own);
  mix_after_dense(config, decoder, deepseek_moe(config));
  return decoder;
}

}  // namespace

const Family deepseek = {
    .name = "DeepSeek",
    .type = "DeepSeek",
    .model_types = {"deepseek"},
    .architectures = {"DeepseekForCausalLM"},
    .decoder = deepseek_decoder,
    .names = hf_decoder_names(deepseek_moe_names()),
    .features = {"attention_bias", "n_routed_experts"},
    .dropped = {"*.rotary_emb.inv_freq"},
};

}  // namespace mlxcel
