// StarCoder (GPT BigCode): GPT-2 with one key/value head for all queries, or,
// without multi_query, one beside each.
#include "models/config_reading.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec gpt_bigcode_decoder(const Config& published) {
  Config config = gpt2_config(published);
  DecoderSpec decoder = gpt2_like_decoder(config, "gelu_pytorch_tanh");
  if (config.get_or("multi_query", true)) {
    for (BlockSpec& block : decoder.blocks) {
      block.attention.heads.key_value = 1;
    }
  }
  return decoder;
}

}  // namespace

const Family gpt_bigcode = {
    .name = "GPT BigCode",
    .type = "GptBigCode",
    .model_types = {"gpt_bigcode"},
    .architectures = {"GPTBigCodeForCausalLM"},
    .decoder = gpt_bigcode_decoder,
    .names = gpt2_names(split_groups(
        "h.{l}.attn.c_attn",
        {"layers.{l}.attention.q",
         "layers.{l}.attention.k",
         "layers.{l}.attention.v"})),
    .dropped = {"*h.*.attn.bias", "*h.*.attn.masked_bias"},
};

}  // namespace mlxcel
