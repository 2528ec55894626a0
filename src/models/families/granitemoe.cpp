// Granite MoE: Granite with a mixture in every layer, gate and up of an expert
// in one matrix.
#include "models/config_reading_moe.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec granitemoe_decoder(const Config& config) {
  BlockSpec block = gated_block(config);
  block.attention.scale = config.get_or("attention_multiplier", 1.f);
  block.moe = local_experts_moe(config, block.mlp);
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::own);
  scale_as_granite(config, decoder);
  return decoder;
}

}  // namespace

const Family granitemoe = {
    .name = "Granite MoE",
    .type = "GraniteMoe",
    .model_types = {"granitemoe"},
    .architectures = {"GraniteMoeForCausalLM"},
    .decoder = granitemoe_decoder,
    .names = hf_decoder_names(granite_moe_names()),
    .features =
        {"attention_bias",
         "attention_multiplier",
         "embedding_multiplier",
         "residual_multiplier",
         "logits_scaling",
         "num_local_experts"},
};

}  // namespace mlxcel
