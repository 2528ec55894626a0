// InternLM 3: Llama with biases as qkv_bias and bias say.
#include "models/config_reading.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec internlm3_decoder(const Config& config) {
  BlockSpec block = gated_block(config);
  bool qkv = config.get_or("qkv_bias", false);
  bool others = config.get_or("bias", false);
  block.attention.bias = attention_bias(qkv, others);
  block.mlp.bias = others ? MlpBias::all : MlpBias::none;
  return uniform_decoder(config, block, HeadKind::own);
}

}  // namespace

const Family internlm3 = {
    .name = "InternLM 3",
    .type = "InternLM3",
    .model_types = {"internlm3"},
    .architectures = {"InternLM3ForCausalLM"},
    .decoder = internlm3_decoder,
    .defaults = {{"rms_norm_eps", 1e-5}},
    .names = hf_decoder_names(),
    .features = {"bias"},
    .dropped = {"*.rotary_emb.inv_freq"},
};

}  // namespace mlxcel
