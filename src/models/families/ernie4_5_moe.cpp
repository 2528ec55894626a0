// ERNIE 4.5 MoE: ERNIE 4.5 with experts in a range of its layers, chosen by
// softmax scores and a bias.
#include "models/config_reading_moe.h"
#include "models/families/families.h"

#include <algorithm>

namespace mlxcel {

namespace {

DecoderSpec ernie4_5_moe_decoder(const Config& published) {
  Config config = renamed(
      published,
      {{"moe_num_experts", "num_experts"},
       {"moe_k", "num_experts_per_tok"},
       {"moe_num_shared_experts", "num_shared_experts"}});
  BlockSpec block = gated_block(config, {.theta = 500000, .interleaved = true});
  bias_everywhere(config, "use_bias", block);
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::tied);
  if (config.get_or("use_bias", false)) {
    decoder.extras.head.bias = HeadBias::stored;
  }
  MoeSpec moe = deepseek_moe(config);
  moe.routing.scale = 1;  // the published class reads no such factor
  moe.routing.shares = Shares::renormalized;
  moe.routing.least_sum = config.get_or("moe_norm_min", 1e-12f);
  moe.router_bias = RouterBias::selection;
  moe.shared.bias = block.mlp.bias;
  int layers = int(decoder.blocks.size());
  int first = config.get_or("moe_layer_start_index", 1);
  int last = config.get_or("moe_layer_end_index", layers - 1);
  int step = std::max(1, config.get_or("moe_layer_interval", 1));
  for (int layer = 0; layer < layers; ++layer) {
    bool in_range = layer >= first && (last < 0 || layer <= last);
    if (in_range && (layer + 1) % step == 0) {
      decoder.blocks[size_t(layer)].moe = moe;
    }
  }
  return decoder;
}

std::vector<NameRule> ernie4_5_moe_names() {
  std::vector<NameRule> names = deepseek_moe_names();
  names.push_back(
      {"layers.{l}.mlp.moe_statics.e_score_correction_bias",
       {"layers.{l}.moe.selection_bias"}});
  return names;
}

}  // namespace

const Family ernie4_5_moe = {
    .name = "ERNIE 4.5 MoE",
    .type = "Ernie45Moe",
    .model_types = {"ernie4_5_moe"},
    .architectures = {"Ernie4_5_MoeForCausalLM"},
    .decoder = ernie4_5_moe_decoder,
    .defaults =
        {{"moe_intermediate_size", 1536},
         {"moe_num_experts", 64},
         {"moe_num_shared_experts", 2},
         {"rms_norm_eps", 1e-5}},
    .names = hf_decoder_names(ernie4_5_moe_names()),
    .features = {"use_bias"},
    .dropped = {"model.mtp_*"},
};

}  // namespace mlxcel
