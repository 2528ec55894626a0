// LFM2 MoE: LFM2 with a mixture of experts after the first layers, chosen by
// sigmoid scores and a bias.
#include "models/config_reading_moe.h"
#include "models/config_reading_recurrent.h"
#include "models/families/families.h"
#include "models/families/lfm2_parts.h"

namespace mlxcel {

namespace {

// Divided sums stay away from zero by this much in Lfm2MoeTopKRouter.
constexpr float kLfm2LeastSum = 1e-6f;

DecoderSpec lfm2_moe_decoder(const Config& config) {
  DecoderSpec decoder = lfm2_layers(config);
  MoeSpec moe{
      .experts = config.get<int>("num_experts"),
      .experts_per_token = config.get<int>("num_experts_per_tok"),
      .expert = {
          .intermediate_size = config.get<int>("moe_intermediate_size")}};
  moe.routing.scores = RouterScores::sigmoid;
  moe.routing.shares = config.get_or("norm_topk_prob", true)
                           ? Shares::renormalized
                           : Shares::as_scored;
  moe.routing.least_sum = kLfm2LeastSum;
  moe.routing.scale = config.get_or("routed_scaling_factor", 1.f);
  if (config.get_or("use_expert_bias", true)) {
    moe.router_bias = RouterBias::selection;
  }
  int dense = config.get_or("num_dense_layers", 2);
  for (size_t layer = 0; layer < decoder.blocks.size(); ++layer) {
    BlockSpec& block = decoder.blocks[layer];
    block.mlp.intermediate_size = config.get<int>("intermediate_size");
    if (int(layer) >= dense) {
      block.moe = moe;
    }
  }
  return decoder;
}

std::vector<NameRule> lfm2_moe_names() {
  const std::string block = "layers.{l}.feed_forward";
  return join(
      {lfm2_block_names(),
       moe_names(block, {"w1", "w3", "w2"}),
       {{block + ".expert_bias", {"layers.{l}.moe.selection_bias"}},
        {block + ".gate_proj", {"layers.{l}.mlp.gate"}},
        {block + ".up_proj", {"layers.{l}.mlp.up"}},
        {block + ".down_proj", {"layers.{l}.mlp.down"}}}});
}

}  // namespace

const Family lfm2_moe = {
    .name = "LFM2 MoE",
    .type = "Lfm2Moe",
    .model_types = {"lfm2_moe"},
    .architectures = {"Lfm2MoeForCausalLM"},
    .decoder = lfm2_moe_decoder,
    .defaults =
        {{"moe_intermediate_size", 1792},
         {"num_experts", 32},
         {"num_experts_per_tok", 4}},
    .names = hf_decoder_names(lfm2_moe_names()),
    .features = {"num_experts", "layer_types"},
};

}  // namespace mlxcel
