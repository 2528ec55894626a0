// EXAONE 4: norms after each half and on each head of q and k; where layers
// slide, those that see everything do not rotate.
#include "models/config_reading_layers.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec exaone4_decoder(const Config& given) {
  Config config = with_defaults(given, {{"sliding_window", 4096}});
  BlockSpec block = gated_block(config);
  block.norms = NormPlacement::post;
  block.attention.qk_norm = QkNorm::per_head;
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::own);
  slide_by_pattern(config, decoder);
  return decoder;
}

}  // namespace

const Family exaone4 = {
    .name = "EXAONE 4",
    .type = "ExaOne4",
    .model_types = {"exaone4"},
    .architectures = {"Exaone4ForCausalLM"},
    .decoder = exaone4_decoder,
    .defaults = {{"rms_norm_eps", 1e-5}},
    .names = hf_decoder_names({
        {"layers.{l}.post_attention_layernorm",
         {"layers.{l}.attention_post_norm"}},
        {"layers.{l}.post_feedforward_layernorm", {"layers.{l}.mlp_post_norm"}},
    }),
    .features = {"sliding_window", "sliding_window_pattern", "layer_types"},
};

}  // namespace mlxcel
