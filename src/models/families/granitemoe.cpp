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

std::vector<NameRule> granitemoe_names() {
  const std::string block = "layers.{l}.block_sparse_moe";
  std::vector<NameRule> names = moe_names(block);
  names.insert(
      names.end(),
      {{block + ".router.layer", {"layers.{l}.moe.router"}},
       stack_split_rows(
           block + ".input_linear",
           {"layers.{l}.moe.experts.{e}.gate",
            "layers.{l}.moe.experts.{e}.up"}),
       stack_experts(
           block + ".output_linear", "layers.{l}.moe.experts.{e}.down")});
  return names;
}

}  // namespace

const Family granitemoe = {
    .name = "Granite MoE",
    .type = "GraniteMoe",
    .model_types = {"granitemoe"},
    .architectures = {"GraniteMoeForCausalLM"},
    .decoder = granitemoe_decoder,
    .names = hf_decoder_names(granitemoe_names()),
    .features =
        {"attention_bias",
         "attention_multiplier",
         "embedding_multiplier",
         "residual_multiplier",
         "logits_scaling",
         "num_local_experts"},
};

}  // namespace mlxcel
