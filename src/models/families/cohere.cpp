// Command R: both halves beside each other under one layer norm without a bias,
// neighbouring features turned, scaled logits; in Plus a norm on each head.
#include "models/config_reading.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec cohere_decoder(const Config& config) {
  BlockSpec block{
      .norms = NormPlacement::parallel,
      .norm = layer_norm(config, "layer_norm_eps", 1e-5f, NormTensors::weight),
      .attention = grouped_query_attention(
          config, {.theta = 500000, .interleaved = true}),
      .mlp = gated_mlp(config)};
  if (config.get_or("use_qk_norm", false)) {
    block.attention.qk_norm = QkNorm::each_head;
  }
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::tied);
  decoder.extras.logit_scale = config.get_or("logit_scale", 0.0625f);
  return decoder;
}

}  // namespace

const Family cohere = {
    .name = "Cohere",
    .type = "Cohere",
    .model_types = {"cohere"},
    .architectures = {"CohereForCausalLM"},
    .decoder = cohere_decoder,
    .names = hf_decoder_names(),
    .features = {"attention_bias", "logit_scale", "use_qk_norm"},
    .dropped = {"*.rotary_emb.inv_freq"},
};

}  // namespace mlxcel
