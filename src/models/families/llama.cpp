// Llama 1 to 3: grouped-query attention and a gated MLP, each behind a norm.
#include "models/config_reading.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec llama_decoder(const Config& config) {
  return uniform_decoder(config, gated_block(config), HeadKind::own);
}

}  // namespace

const Family llama = {
    .name = "Llama",
    .type = "Llama",
    .model_types = {"llama"},
    .architectures = {"LlamaForCausalLM", "LLaMAForCausalLM"},
    .weight_route = WeightRoute::llama_family,
    .embed_pairs = EmbedPairs::when_tied,
    .decoder = llama_decoder,
    .defaults = {{"rms_norm_eps", 1e-6}},
    .names = hf_decoder_names(),
    .features = {"attention_bias", "mlp_bias"},
    .dropped = {"*.rotary_emb.inv_freq"},
};

}  // namespace mlxcel
