// StarCoder (GPT BigCode): GPT-2 with one key/value head for all queries, or,
// without multi_query, one beside each.
#include "models/config_reading.h"
#include "models/families/families.h"

#include <cmath>

namespace mlxcel {

namespace {

DecoderSpec gpt_bigcode_decoder(const Config& published) {
  Config config = gpt2_config(published);
  AttentionSpec attention;
  attention.heads = head_counts(config);
  if (config.get_or("multi_query", true)) {
    attention.heads.key_value = 1;
  }
  attention.scale = config.get_or("scale_attn_weights", true)
                        ? 1 / std::sqrt(float(attention.heads.dim))
                        : 1;
  attention.bias = AttentionBias::all;
  DecoderSpec decoder = uniform_decoder(
      config,
      {.norm = layer_norm(config, "layer_norm_epsilon"),
       .attention = attention,
       .mlp = plain_mlp(
           config, "activation_function", "gelu_pytorch_tanh", MlpBias::all)},
      HeadKind::tied);
  decoder.extras.positions.rows = config.get<int>("max_position_embeddings");
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
