// Phi 3.5 MoE: layer norms, biases on the attention and the head, two experts a
// token by the sparse mixer.
#include "models/config_reading_layers.h"
#include "models/config_reading_moe.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec phimoe_decoder(const Config& config) {
  BlockSpec block{
      .norm = layer_norm(config, "rms_norm_eps"),
      .attention = grouped_query_attention(config, {.theta = 1000000}),
      .mlp = gated_mlp(config)};
  block.moe = local_experts_moe(
      with_defaults(config, {{"num_experts_per_tok", 2}}), block.mlp);
  block.moe->routing = {
      .scores = RouterScores::sparse_mixer,
      .tolerance = config.get_or("router_jitter_noise", 0.01f)};
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::own);
  if (config.get_or("lm_head_bias", false)) {
    decoder.extras.head.bias = HeadBias::stored;
  }
  slide_all_layers(config, decoder);
  return decoder;
}

}  // namespace

const Family phimoe = {
    .name = "Phi MoE",
    .type = "PhiMoe",
    .model_types = {"phimoe"},
    .architectures = {"PhiMoEForCausalLM", "PhimoeForCausalLM"},
    .decoder = phimoe_decoder,
    .names = hf_decoder_names(moe_names(
        "layers.{l}.block_sparse_moe",
        {.gate = "w1", .up = "w3", .down = "w2"})),
    .features = {"attention_bias", "num_local_experts", "sliding_window"},
};

}  // namespace mlxcel
