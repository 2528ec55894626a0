// OLMoE: norms over the whole q and k projections, experts in every layer.
#include "models/config_reading.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec olmoe_decoder(const Config& config) {
  BlockSpec block = gated_block(config);
  block.attention.qk_norm = QkNorm::projection;
  block.attention.extras.clip = number_or_off(config, "clip_qkv", 0);
  block.moe = softmax_moe(config, "intermediate_size");
  return uniform_decoder(config, block, HeadKind::own);
}

}  // namespace

const Family olmoe = {
    .name = "OLMoE",
    .type = "OLMoE",
    .model_types = {"olmoe"},
    .architectures = {"OlmoeForCausalLM"},
    .decoder = olmoe_decoder,
    .defaults = {{"num_experts", 64}, {"rms_norm_eps", 1e-5}},
    .names = hf_decoder_names(moe_names("layers.{l}.mlp")),
    .features = {"attention_bias", "num_experts", "clip_qkv"},
};

}  // namespace mlxcel
