// SmolLM 3: Llama in which some layers do not rotate; only those may slide.
#include "models/config_reading_layers.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec smollm3_decoder(const Config& config) {
  DecoderSpec decoder = uniform_decoder(
      config, gated_block(config, {.theta = 2e6}), HeadKind::tied);
  std::vector<int> rotating = rotating_layers(config, decoder.blocks.size());
  for (size_t i = 0; i < decoder.blocks.size(); ++i) {
    if (rotating[i] == 0) {
      decoder.blocks[i].attention.rope = nullptr;
    }
  }
  bool windowed = config.get_or("use_sliding_window", false) &&
                  config.has("sliding_window");
  slide_layers(config, decoder, [&](int layer) {
    return windowed && rotating[size_t(layer)] == 0;
  });
  return decoder;
}

}  // namespace

const Family smollm3 = {
    .name = "SmolLM 3",
    .type = "SmolLM3",
    .model_types = {"smollm3"},
    .architectures = {"SmolLM3ForCausalLM"},
    .decoder = smollm3_decoder,
    .defaults = {{"rms_norm_eps", 1e-6}},
    .names = hf_decoder_names(),
    .features =
        {"attention_bias",
         "mlp_bias",
         "no_rope_layers",
         "sliding_window",
         "layer_types"},
};

}  // namespace mlxcel
