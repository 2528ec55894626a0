// MiMo: Qwen 2 without its windows; the layers that predict further tokens are
// not used.
#include "models/config_reading.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec mimo_decoder(const Config& config) {
  BlockSpec block = gated_block(config);
  block.attention.bias = AttentionBias::qkv;
  return uniform_decoder(config, block, HeadKind::own);
}

}  // namespace

const Family mimo = {
    .name = "MiMo",
    .type = "MiMo",
    .model_types = {"mimo"},
    .architectures = {"MiMoForCausalLM"},
    .decoder = mimo_decoder,
    .names = hf_decoder_names(),
    .features = {"attention_bias"},
    .dropped = {"model.mtp_layers.*", "*.rotary_emb.inv_freq"},
};

}  // namespace mlxcel
