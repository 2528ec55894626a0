// Qwen 3.5 MoE: Qwen 3.5 with a mixture in every layer, gate and up of all its
// experts in one tensor.
#include "models/config_reading_moe.h"
#include "models/config_reading_recurrent.h"
#include "models/families/families.h"
#include "models/families/qwen3_hybrid.h"
#include "models/hybrid_names.h"

namespace mlxcel {

namespace {

DecoderSpec qwen3_5_moe_decoder(const Config& config) {
  MlpSpec none{
      .intermediate_size = config.get<int>("moe_intermediate_size"),
      .activation = activation_from_name(config, "hidden_act", "silu")};
  DecoderSpec decoder =
      qwen3_hybrid_decoder(config, none, DeltaProjections::separate);
  MoeSpec moe = softmax_moe(config, "moe_intermediate_size");
  moe.routing.shares = Shares::renormalized;
  add_shared_expert(config, moe);
  for (BlockSpec& block : decoder.blocks) {
    block.moe = moe;
  }
  return decoder;
}

FamilyNames qwen3_5_moe_names() {
  FamilyNames names = qwen3_5_names(join(
      {moe_names("layers.{l}.mlp"), shared_expert_names("layers.{l}.mlp")}));
  names.stacks = stacked_expert_names("layers.{l}.mlp.");
  return names;
}

}  // namespace

const Family qwen3_5_moe = {
    .name = "Qwen 3.5 MoE",
    .type = "Qwen35Moe",
    .model_types = {"qwen3_5_moe", "qwen3_5_moe_text"},
    .architectures =
        {"Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeForCausalLM"},
    .vision_type = "Qwen35MoeVLM",
    .decoder = qwen3_5_moe_decoder,
    .defaults =
        {{"head_dim", 256},
         {"linear_key_head_dim", 128},
         {"linear_num_value_heads", 32},
         {"linear_value_head_dim", 128},
         {"moe_intermediate_size", 512},
         {"num_experts", 256},
         {"num_key_value_heads", 2},
         {"rms_norm_eps", 1e-6},
         {"shared_expert_intermediate_size", 512}},
    .names = qwen3_5_moe_names(),
    .features =
        {"partial_rotary_factor",
         "attention_bias",
         "num_experts",
         "layer_types"},
    .dropped = {"mtp.*", "*.mtp.*"},
};

}  // namespace mlxcel
