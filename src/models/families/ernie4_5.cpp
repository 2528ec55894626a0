// ERNIE 4.5: Llama with neighbouring features turned; use_bias gives every
// projection a bias.
#include "models/config_reading_layers.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec ernie4_5_decoder(const Config& config) {
  BlockSpec block = gated_block(
      with_defaults(config, {{"head_dim", 128}}),
      {.theta = 500000, .interleaved = true});
  bias_everywhere(config, "use_bias", block);
  return uniform_decoder(config, block, HeadKind::tied);
}

}  // namespace

const Family ernie4_5 = {
    .name = "ERNIE 4.5",
    .type = "Ernie45",
    .model_types = {"ernie4_5"},
    .architectures = {"Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"},
    .decoder = ernie4_5_decoder,
    .defaults = {{"num_key_value_heads", 2}, {"rms_norm_eps", 1e-5}},
    .names = hf_decoder_names(),
    .features = {"use_bias"},
};

}  // namespace mlxcel
