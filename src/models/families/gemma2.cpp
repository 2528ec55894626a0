// Gemma 2: Gemma with norms on both sides of each half, windows on every second
// layer, soft-capped attention and logits.
#include "models/config_reading.h"
#include "models/families/families.h"

#include <cmath>

namespace mlxcel {

namespace {

DecoderSpec gemma2_decoder(const Config& config) {
  NormSpec norm = rms_norm(config);
  norm.weight_offset = 1;
  BlockSpec block{
      .norms = NormPlacement::sandwich,
      .norm = norm,
      .attention = grouped_query_attention(config),
      .mlp = gated_mlp(config, "hidden_activation", "gelu_pytorch_tanh")};
  block.attention.scale =
      1 / std::sqrt(config.get<float>("query_pre_attn_scalar"));
  block.attention.softcap = number_or_off(config, "attn_logit_softcapping", 50);

  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::tied);
  decoder.embedding_scale = std::sqrt(float(decoder.hidden_size));
  decoder.logit_softcap = number_or_off(config, "final_logit_softcapping", 30);
  slide_layers(config, decoder, [](int layer) { return layer % 2 == 0; });
  return decoder;
}

}  // namespace

const Family gemma2 = {
    .name = "Gemma 2",
    .type = "Gemma2",
    .model_types = {"gemma2"},
    .architectures = {"Gemma2ForCausalLM"},
    .decoder = gemma2_decoder,
    .names = hf_decoder_names({
        {"layers.{l}.post_attention_layernorm",
         {"layers.{l}.attention_post_norm"}},
        {"layers.{l}.pre_feedforward_layernorm", {"layers.{l}.mlp_norm"}},
        {"layers.{l}.post_feedforward_layernorm", {"layers.{l}.mlp_post_norm"}},
    }),
    .features =
        {"attention_bias",
         "query_pre_attn_scalar",
         "attn_logit_softcapping",
         "final_logit_softcapping",
         "sliding_window",
         "layer_types"},
};

}  // namespace mlxcel
