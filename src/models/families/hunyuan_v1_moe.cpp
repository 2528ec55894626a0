// Hunyuan V1 MoE: Hunyuan with renormalized softmax shares and an MLP for every
// row.
#include "models/config_reading_layers.h"
#include "models/config_reading_moe.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec hunyuan_v1_moe_decoder(const Config& given) {
  // The published class takes the second names for the first ones.
  Config config = overridden(
      given,
      {{"num_experts_per_tok", "moe_topk"},
       {"num_local_experts", "num_experts"}});
  BlockSpec block{
      .norm = rms_norm(config),
      .attention = hunyuan_attention(config),
      .mlp = gated_mlp(config)};
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::tied);
  for (size_t layer = 0; layer < decoder.blocks.size(); ++layer) {
    auto number = [&](const char* key) {
      return layer_number(config, key, layer);
    };
    // The reference sizes experts and shared MLP by intermediate_size.
    MlpSpec expert{
        .intermediate_size = block.mlp.intermediate_size,
        .activation = block.mlp.activation};
    decoder.blocks[layer].moe = MoeSpec{
        .experts = number("num_experts"),
        .experts_per_token = number("moe_topk"),
        .expert = expert,
        .routing = {.shares = Shares::renormalized},
        .shared = expert};
  }
  return decoder;
}

}  // namespace

const Family hunyuan_v1_moe = {
    .name = "Hunyuan V1 MoE",
    .type = "HunyuanV1Moe",
    .model_types = {"hunyuan_v1_moe"},
    .architectures = {"HunYuanMoEV1ForCausalLM"},
    .decoder = hunyuan_v1_moe_decoder,
    .defaults = {{"moe_topk", 1}, {"rms_norm_eps", 1e-5}},
    .names = hf_decoder_names(hunyuan_moe_names()),
    .features = {"attention_bias", "use_qk_norm", "num_experts"},
};

}  // namespace mlxcel
