// Mixtral: Mistral with a mixture of experts in every layer, whose weights are
// divided by their sum.
#include "models/config_reading_moe.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec mixtral_decoder(const Config& config) {
  BlockSpec block = gated_block(config, {.theta = 1e6});
  block.moe = local_experts_moe(config, block.mlp);
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::own);
  slide_all_layers(config, decoder);
  return decoder;
}

}  // namespace

const Family mixtral = {
    .name = "Mixtral",
    .type = "Mixtral",
    .model_types = {"mixtral"},
    .architectures = {"MixtralForCausalLM"},
    .decoder = mixtral_decoder,
    .defaults =
        {{"num_experts_per_tok", 2},
         {"num_local_experts", 8},
         {"rms_norm_eps", 1e-5}},
    .names = hf_decoder_names(
        moe_names("layers.{l}.block_sparse_moe", {"w1", "w3", "w2"})),
    .features = {"sliding_window", "num_local_experts"},
    .dropped = {"*.rotary_emb.inv_freq"},
};

}  // namespace mlxcel
