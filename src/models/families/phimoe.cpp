// Phi 3.5 MoE: layer norms, biases on the attention and the head, two experts a
// token by the sparse mixer.
#include "core/error.h"
#include "models/config_reading_layers.h"
#include "models/config_reading_moe.h"
#include "models/families/families.h"

#include <optional>
#include <string>

namespace mlxcel {

namespace {

Config phimoe_config(const Config& given) {
  Config config = with_defaults(given, {{"num_experts_per_tok", 2}});
  if (int stated = config.get<int>("num_experts_per_tok"); stated != 2) {
    throw ConfigError(
        cat(config.file(), ": num_experts_per_tok is ", stated),
        "the sparse mixer chooses two experts for each token",
        "take config.json from the model's original publisher");
  }
  // Unlike elsewhere, the rotation's own context goes before the outer one.
  const std::string original = "original_max_position_embeddings";
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    std::optional<Config> rope = config.find_sub(key);
    if (rope && rope->has(original)) {
      return with_values(config, {{original, rope->json().at(original)}});
    }
  }
  return config;
}

DecoderSpec phimoe_decoder(const Config& given) {
  Config config = phimoe_config(given);
  BlockSpec block{
      .norm = layer_norm(config, "rms_norm_eps"),
      .attention = grouped_query_attention(config, {.theta = 1000000}),
      .mlp = gated_mlp(config)};
  block.moe = local_experts_moe(config, block.mlp);
  block.moe->routing = {
      .scores = RouterScores::sparse_mixer,
      .tolerance = config.get_or("router_jitter_noise", 0.01f)};
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::own);
  if (config.get_or("lm_head_bias", false)) {
    decoder.extras.head.bias = HeadBias::stored;
  }
  slide_all_layers(config, decoder);
  return decoder;
}

}  // namespace

const Family phimoe = {
    .name = "Phi MoE",
    .type = "PhiMoe",
    .model_types = {"phimoe"},
    .architectures = {"PhiMoEForCausalLM", "PhimoeForCausalLM"},
    .decoder = phimoe_decoder,
    .defaults = {{"num_local_experts", 16}},
    .names = hf_decoder_names(moe_names(
        "layers.{l}.block_sparse_moe",
        {.gate = "w1", .up = "w3", .down = "w2"})),
    .features = {"attention_bias", "num_local_experts", "sliding_window"},
};

}  // namespace mlxcel
