// Command R7B: Cohere with windows; the layers that see everything do not turn.
#include "models/config_reading_layers.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec cohere2_decoder(const Config& given) {
  // Cohere's other base is not this family's.
  Config config =
      with_defaults(given, {{"rope_theta", 10000}, {"sliding_window", 4096}});
  DecoderSpec decoder = cohere.decoder(config);
  int pattern = std::max(1, config.get_or("sliding_window_pattern", 4));
  slide_layers(
      config, decoder, [&](int layer) { return (layer + 1) % pattern != 0; });
  rotate_sliding_layers(decoder);
  return decoder;
}

}  // namespace

const Family cohere2 = {
    .name = "Cohere 2",
    .type = "Cohere2",
    .model_types = {"cohere2"},
    .architectures = {"Cohere2ForCausalLM"},
    .decoder = cohere2_decoder,
    .names = hf_decoder_names(),
    .features =
        {"attention_bias", "logit_scale", "sliding_window", "layer_types"},
    .dropped = {"*.rotary_emb.inv_freq"},
};

}  // namespace mlxcel
