// OLMo: Llama with layer norms that have no tensors.
#include "models/config_reading.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec olmo_decoder(const Config& config) {
  BlockSpec block{
      .norm =
          {.kind = NormKind::layer, .eps = 1e-5f, .tensors = NormTensors::none},
      .attention = grouped_query_attention(config),
      .mlp = gated_mlp(config)};
  block.attention.extras.clip = number_or_off(config, "clip_qkv", 0);
  return uniform_decoder(config, block, HeadKind::own);
}

}  // namespace

const Family olmo = {
    .name = "OLMo",
    .type = "Olmo",
    .model_types = {"olmo"},
    .architectures = {"OlmoForCausalLM"},
    .decoder = olmo_decoder,
    .names = hf_decoder_names(),
    .features = {"attention_bias", "clip_qkv"},
    .dropped = {"*.rotary_emb.inv_freq"},
};

}  // namespace mlxcel
