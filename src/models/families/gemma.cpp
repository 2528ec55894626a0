// Gemma: norms with weight + 1, embeddings times sqrt(hidden_size).
#include "models/config_reading.h"
#include "models/families/families.h"

#include <cmath>

namespace mlxcel {

namespace {

DecoderSpec gemma_decoder(const Config& config) {
  BlockSpec block = gated_block(config);
  block.norm.weight_offset = 1;
  block.mlp = gated_mlp(config, "hidden_act", "gelu_pytorch_tanh");
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::tied);
  decoder.embedding_scale = std::sqrt(float(decoder.hidden_size));
  return decoder;
}

}  // namespace

const Family gemma = {
    .name = "Gemma",
    .type = "Gemma",
    .model_types = {"gemma"},
    .architectures = {"GemmaForCausalLM"},
    .decoder = gemma_decoder,
    .defaults = {{"head_dim", 256}, {"rms_norm_eps", 1e-6}},
    .names = hf_decoder_names(),
    .features = {"attention_bias"},
    .dropped = {"*.rotary_emb.inv_freq"},
};

}  // namespace mlxcel
