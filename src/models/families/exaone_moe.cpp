// EXAONE MoE: windows on most layers, the layers that see everything without
// rotation, norms on each head of q and k, the routing of DeepSeek 3.
#include "models/config_reading_layers.h"
#include "models/config_reading_moe.h"
#include "models/families/families.h"

#include <algorithm>

namespace mlxcel {

namespace {

DecoderSpec exaone_moe_decoder(const Config& given) {
  Config config = with_defaults(
      given,
      {{"sliding_window", 4096},
       {"routed_scaling_factor", 2.5},
       {"first_k_dense_replace", 1}});
  BlockSpec block = gated_block(config);
  block.attention.qk_norm = QkNorm::per_head;
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::own);
  slide_by_pattern(config, decoder);
  MoeSpec moe = deepseek3_moe(config);
  auto sparse = config.find<std::vector<bool>>("is_moe_layer");
  if (!sparse || config.has("mlp_layer_types")) {
    mix_by_type(config, decoder, moe);
    return decoder;
  }
  size_t listed = std::min(sparse->size(), decoder.blocks.size());
  for (size_t layer = 0; layer < listed; ++layer) {
    if ((*sparse)[layer]) {
      decoder.blocks[layer].moe = moe;
    }
  }
  return decoder;
}

}  // namespace

const Family exaone_moe = {
    .name = "EXAONE MoE",
    .type = "ExaOneMoe",
    .model_types = {"exaone_moe"},
    .architectures = {"ExaoneMoeForCausalLM"},
    .decoder = exaone_moe_decoder,
    .defaults =
        {{"moe_intermediate_size", 1024},
         {"num_experts", 64},
         {"num_shared_experts", 1},
         {"rms_norm_eps", 1e-5}},
    .names = hf_decoder_names(deepseek_moe_names()),
    .features =
        {"attention_bias", "num_experts", "sliding_window", "layer_types"},
    .dropped = {"mtp.*", "model.mtp.*"},
};

}  // namespace mlxcel
