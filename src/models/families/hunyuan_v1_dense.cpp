// Hunyuan V1 Dense: Llama with norms on each head of q and k, after the
// rotation, and a base that grows with alpha. Early checkpoints hold q, k and v
// in one tensor, and up and gate, in this order.
#include "models/config_reading_layers.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec hunyuan_v1_dense_decoder(const Config& config) {
  BlockSpec block = gated_block(config);
  block.attention = hunyuan_attention(config);
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::own);
  share_across_layers(config, decoder);
  return decoder;
}

}  // namespace

const Family hunyuan_v1_dense = {
    .name = "Hunyuan V1 Dense",
    .type = "HunyuanV1Dense",
    .model_types = {"hunyuan_v1_dense"},
    .architectures = {"HunYuanDenseV1ForCausalLM"},
    .decoder = hunyuan_v1_dense_decoder,
    .defaults = {{"rms_norm_eps", 1e-5}},
    .names = hf_decoder_names({
        {"layers.{l}.self_attn.query_layernorm",
         {"layers.{l}.attention.q_norm"}},
        {"layers.{l}.self_attn.key_layernorm", {"layers.{l}.attention.k_norm"}},
        split_groups(
            "layers.{l}.self_attn.qkv_proj",
            {"layers.{l}.attention.q",
             "layers.{l}.attention.k",
             "layers.{l}.attention.v"}),
        split_rows(
            "layers.{l}.mlp.gate_and_up_proj",
            {"layers.{l}.mlp.up", "layers.{l}.mlp.gate"}),
    }),
    .features = {"attention_bias", "use_qk_norm", "use_cla"},
};

}  // namespace mlxcel
