// Helium: Llama with neighbouring features turned.
#include "models/config_reading_layers.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec helium_decoder(const Config& config) {
  Config filled =
      with_defaults(config, {{"head_dim", 128}, {"rms_norm_eps", 1e-8}});
  BlockSpec block = gated_block(filled, {.theta = 100000, .interleaved = true});
  block.attention.bias =
      attention_bias(filled.get_or("attention_bias", false), false);
  return uniform_decoder(filled, block, HeadKind::own);
}

}  // namespace

const Family helium = {
    .name = "Helium",
    .type = "Helium",
    .model_types = {"helium"},
    .architectures = {"HeliumForCausalLM"},
    .decoder = helium_decoder,
    .names = hf_decoder_names(),
    .features = {"attention_bias", "mlp_bias"},
};

}  // namespace mlxcel
