// Granite: Llama with multipliers on the embedding, the attention scores, each
// half and the logits.
#include "models/config_reading.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec granite_decoder(const Config& config) {
  BlockSpec block = granite_block(config);
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::own);
  scale_as_granite(config, decoder);
  return decoder;
}

}  // namespace

const Family granite = {
    .name = "Granite",
    .type = "Granite",
    .model_types = {"granite"},
    .architectures = {"GraniteForCausalLM"},
    .decoder = granite_decoder,
    .defaults = {{"rms_norm_eps", 1e-6}},
    .names = hf_decoder_names(),
    .features = granite_features({"mlp_bias"}),
    .dropped = {"*.rotary_emb.inv_freq"},
};

}  // namespace mlxcel
