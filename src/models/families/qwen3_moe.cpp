// Qwen 3 MoE: Qwen 3 with a mixture of experts in most layers, its own head,
// and one window over all layers where one is switched on.
#include "models/config_reading.h"
#include "models/config_reading_layers.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec qwen3_moe_decoder(const Config& given) {
  // transformers 5 saves it under its attribute's name.
  Config config = renamed(given, {{"num_local_experts", "num_experts"}});
  BlockSpec block = gated_block(config);
  block.attention.qk_norm = QkNorm::per_head;
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::own);
  mix_layers(config, decoder, softmax_moe(config, "moe_intermediate_size"));
  if (config.get_or("use_sliding_window", false)) {
    slide_all_layers(
        with_defaults(config, {{"sliding_window", 4096}}), decoder);
  }
  return decoder;
}

}  // namespace

const Family qwen3_moe = {
    .name = "Qwen 3 MoE",
    .type = "Qwen3Moe",
    .model_types = {"qwen3_moe"},
    .architectures = {"Qwen3MoeForCausalLM"},
    .decoder = qwen3_moe_decoder,
    .defaults =
        {{"moe_intermediate_size", 768},
         {"num_local_experts", 128},
         {"rms_norm_eps", 1e-6}},
    .names = hf_decoder_names(moe_names("layers.{l}.mlp")),
    .features =
        {"attention_bias",
         "sliding_window",
         "num_experts",
         "num_local_experts"},
};

}  // namespace mlxcel
