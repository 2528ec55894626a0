// Mistral: Llama with one sliding window over all layers, or none.
#include "models/config_reading_layers.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec mistral_decoder(const Config& given) {
  // The class's default; configs without a window write null.
  Config config = with_defaults(given, {{"sliding_window", 4096}});
  DecoderSpec decoder =
      uniform_decoder(config, gated_block(config), HeadKind::own);
  slide_all_layers(config, decoder);
  return decoder;
}

}  // namespace

const Family mistral = {
    .name = "Mistral",
    .type = "Llama",
    .model_types = {"mistral"},
    .architectures = {"MistralForCausalLM"},
    .weight_route = WeightRoute::llama_family,
    .embed_pairs = EmbedPairs::when_tied,
    .decoder = mistral_decoder,
    .defaults = {{"rms_norm_eps", 1e-6}},
    .names = hf_decoder_names(),
    .features = {"attention_bias", "sliding_window", "layer_types"},
    .dropped = {"*.rotary_emb.inv_freq"},
};

}  // namespace mlxcel
