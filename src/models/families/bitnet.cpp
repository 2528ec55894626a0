// BitNet: a gated MLP of squared relu, and a norm before each half's last
// projection. Float weights; packed ternary ones are refused by their format.
#include "models/config_reading.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec bitnet_decoder(const Config& config) {
  BlockSpec block{
      .norms = NormPlacement::pre_inner,
      .norm = rms_norm(config),
      .attention = grouped_query_attention(config, {.theta = 500000}),
      .mlp = gated_mlp(config, "hidden_act", "relu2")};
  return uniform_decoder(config, block, HeadKind::own);
}

}  // namespace

const Family bitnet = {
    .name = "BitNet",
    .type = "BitNet",
    .model_types = {"bitnet"},
    .architectures = {"BitNetForCausalLM"},
    .decoder = bitnet_decoder,
    .defaults = {{"rms_norm_eps", 1e-5}},
    .names = hf_decoder_names(
        {{"layers.{l}.self_attn.attn_sub_norm",
          {"layers.{l}.attention.inner_norm"}},
         {"layers.{l}.mlp.ffn_sub_norm", {"layers.{l}.mlp.inner_norm"}}}),
    .features = {"attention_bias"},
};

}  // namespace mlxcel
