// Hunyuan V1 Dense: Llama with norms on each head of q and k, after the
// rotation, and a base that grows with alpha.
#include "models/config_reading_layers.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec hunyuan_v1_dense_decoder(const Config& config) {
  BlockSpec block = gated_block(config);
  block.attention = hunyuan_attention(config);
  return uniform_decoder(config, block, HeadKind::own);
}

}  // namespace

const Family hunyuan_v1_dense = {
    .name = "Hunyuan V1 Dense",
    .type = "HunyuanV1Dense",
    .model_types = {"hunyuan_v1_dense"},
    .architectures = {"HunYuanDenseV1ForCausalLM"},
    .decoder = hunyuan_v1_dense_decoder,
    .names = hf_decoder_names({
        {"layers.{l}.self_attn.query_layernorm",
         {"layers.{l}.attention.q_norm"}},
        {"layers.{l}.self_attn.key_layernorm", {"layers.{l}.attention.k_norm"}},
    }),
    .features = {"attention_bias", "use_qk_norm"},
};

}  // namespace mlxcel
