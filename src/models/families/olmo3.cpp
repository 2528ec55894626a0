// OLMo 3: OLMo 2 in which most layers slide, with a rotation of their own.
#include "models/config_reading_layers.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec olmo3_decoder(const Config& config) {
  BlockSpec block = gated_block(config);
  block.norms = NormPlacement::post;
  block.attention.qk_norm = QkNorm::projection;
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::own);
  slide_layers(config, decoder, [](int layer) { return (layer + 1) % 4 != 0; });
  // A flat rope_theta is that of the layers that see everything.
  rotate_by_type(config, decoder, {.full_theta = 5e5, .sliding_theta = 5e5});
  return decoder;
}

}  // namespace

const Family olmo3 = {
    .name = "OLMo 3",
    .type = "Olmo3",
    .model_types = {"olmo3"},
    .architectures = {"Olmo3ForCausalLM"},
    .decoder = olmo3_decoder,
    .defaults = {{"rms_norm_eps", 1e-5}, {"sliding_window", 4096}},
    .names = hf_decoder_names({
        {"layers.{l}.post_attention_layernorm",
         {"layers.{l}.attention_post_norm"}},
        {"layers.{l}.post_feedforward_layernorm", {"layers.{l}.mlp_post_norm"}},
    }),
    .features = {"attention_bias", "sliding_window", "layer_types"},
};

}  // namespace mlxcel
