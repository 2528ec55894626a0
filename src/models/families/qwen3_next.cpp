// Qwen 3 Next: gated delta layers with gated attention in every fourth, and a
// mixture of experts.
#include "models/config_reading_moe.h"
#include "models/config_reading_recurrent.h"
#include "models/families/families.h"
#include "models/families/qwen3_hybrid.h"

namespace mlxcel {

namespace {

DecoderSpec qwen3_next_decoder(const Config& config) {
  DecoderSpec decoder =
      qwen3_hybrid_decoder(config, gated_mlp(config), DeltaProjections::packed);
  MoeSpec moe = softmax_moe(config, "moe_intermediate_size");
  moe.routing.shares = config.get_or("norm_topk_prob", true)
                           ? Shares::renormalized
                           : Shares::as_scored;
  add_shared_expert(config, moe);
  mix_layers(config, decoder, moe);
  return decoder;
}

}  // namespace

const Family qwen3_next = {
    .name = "Qwen 3 Next",
    .type = "Qwen3Next",
    .model_types = {"qwen3_next"},
    .architectures = {"Qwen3NextForCausalLM"},
    .decoder = qwen3_next_decoder,
    .defaults =
        {{"head_dim", 256},
         {"linear_key_head_dim", 128},
         {"linear_num_value_heads", 32},
         {"linear_value_head_dim", 128},
         {"moe_intermediate_size", 512},
         {"num_experts", 512},
         {"num_key_value_heads", 2},
         {"rms_norm_eps", 1e-6},
         {"shared_expert_intermediate_size", 512}},
    .names = hf_decoder_names(join(
        {qwen3_hybrid_names(),
         moe_names("layers.{l}.mlp"),
         shared_expert_names("layers.{l}.mlp")})),
    .features =
        {"partial_rotary_factor",
         "attention_bias",
         "num_experts",
         "layer_types"},
    .dropped = {"mtp.*", "*.mtp.*"},
};

}  // namespace mlxcel
