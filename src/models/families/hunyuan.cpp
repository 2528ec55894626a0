// Hunyuan Large: Hunyuan's attention, keys and values shared across layers, and
// a mixture of experts beside a shared MLP. With one expert: Hunyuan V1 Dense.
#include "models/config_reading_layers.h"
#include "models/config_reading_moe.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

const Family* hunyuan_variant(const Config& config) {
  return config.get_or("num_experts", 1) > 1 ? nullptr : &hunyuan_v1_dense;
}

DecoderSpec hunyuan_decoder(const Config& config) {
  BlockSpec block = gated_block(config);
  block.attention = hunyuan_attention(config);
  if (!config.get_or("use_qk_norm", true)) {  // this class alone reads it
    block.attention.qk_norm = QkNorm::none;
  }
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::tied);
  // The published class multiplies by the table, whatever the config says.
  decoder.head = HeadKind::tied;
  share_across_layers(config, decoder);
  for (size_t layer = 0; layer < decoder.blocks.size(); ++layer) {
    MoeSpec moe{
        .experts = config.get<int>("num_experts"),
        .experts_per_token = layer_number(config, "moe_topk", layer),
        .expert = {
            .intermediate_size = block.mlp.intermediate_size,
            .activation = block.mlp.activation}};
    if (config.get_or("use_mixed_mlp_moe", false)) {
      moe.shared = moe.expert;
      moe.shared.intermediate_size *=
          layer_number(config, "num_shared_expert", layer);
    }
    if (config.has("moe_intermediate_size")) {
      moe.expert.intermediate_size =
          layer_number(config, "moe_intermediate_size", layer);
    }
    decoder.blocks[layer].moe = moe;
  }
  return decoder;
}

}  // namespace

const Family hunyuan = {
    .name = "Hunyuan",
    .type = "HunyuanMoe",
    .model_types = {"hunyuan"},
    .architectures = {"HunYuanForCausalLM"},
    .variant = hunyuan_variant,
    .decoder = hunyuan_decoder,
    .names = hf_decoder_names(hunyuan_moe_names()),
    .features = {"attention_bias", "use_qk_norm", "use_cla", "num_experts"},
};

}  // namespace mlxcel
