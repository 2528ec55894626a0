// OLMo 2: norms after each half instead of before, and over the whole q and k
// projections.
#include "models/config_reading.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec olmo2_decoder(const Config& config) {
  BlockSpec block = gated_block(config);
  block.norms = NormPlacement::post;
  block.attention.qk_norm = QkNorm::projection;
  return uniform_decoder(config, block, HeadKind::own);
}

}  // namespace

const Family olmo2 = {
    .name = "OLMo 2",
    .type = "Olmo2",
    .model_types = {"olmo2"},
    .architectures = {"Olmo2ForCausalLM"},
    .decoder = olmo2_decoder,
    .defaults = {{"rms_norm_eps", 1e-5}},
    .names = hf_decoder_names({
        {"layers.{l}.post_attention_layernorm",
         {"layers.{l}.attention_post_norm"}},
        {"layers.{l}.post_feedforward_layernorm", {"layers.{l}.mlp_post_norm"}},
    }),
    .features = {"attention_bias"},
};

}  // namespace mlxcel
