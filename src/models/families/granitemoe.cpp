// Granite MoE: Granite with a mixture in every layer, gate and up of an expert
// in one matrix.
#include "models/config_reading_moe.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec granitemoe_decoder(const Config& config) {
  BlockSpec block = granite_block(config);
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
    .defaults =
        {{"num_experts_per_tok", 2},
         {"num_local_experts", 8},
         {"rms_norm_eps", 1e-6}},
    .names = hf_decoder_names(granite_moe_names()),
    .features = granite_features({"num_local_experts"}),
};

}  // namespace mlxcel
