// InternLM 2: Llama under other names, with q, k and v packed by key/value
// head.
#include "models/config_reading.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec internlm2_decoder(const Config& config) {
  BlockSpec block = gated_block(config);
  block.attention.bias =
      is_set(config, "bias", true) ? AttentionBias::all : AttentionBias::none;
  return uniform_decoder(config, block, HeadKind::own);
}

FamilyNames internlm2_names() {
  return hf_decoder_names({
      {"tok_embeddings", {"embedding"}},
      {"layers.{l}.attention_norm", {"layers.{l}.attention_norm"}},
      split_groups(
          "layers.{l}.attention.wqkv",
          {"layers.{l}.attention.q",
           "layers.{l}.attention.k",
           "layers.{l}.attention.v"}),
      {"layers.{l}.attention.wo", {"layers.{l}.attention.o"}},
      {"layers.{l}.ffn_norm", {"layers.{l}.mlp_norm"}},
      {"layers.{l}.feed_forward.w1", {"layers.{l}.mlp.gate"}},
      {"layers.{l}.feed_forward.w3", {"layers.{l}.mlp.up"}},
      {"layers.{l}.feed_forward.w2", {"layers.{l}.mlp.down"}},
      {"output", {"head"}},
  });
}

}  // namespace

const Family internlm2 = {
    .name = "InternLM 2",
    .type = "InternLM2",
    .model_types = {"internlm2"},
    .architectures = {"InternLM2ForCausalLM"},
    .decoder = internlm2_decoder,
    .names = internlm2_names(),
    .features = {"bias"},
    .dropped = {"*.rope.inv_freq"},
};

}  // namespace mlxcel
