// Phi 3 small: block-sparse attention in all but every n-th layer, gate and up
// of a clamped GELU in turn, and the multipliers of maximal update
// parametrization.
#include "core/error.h"
#include "models/config_reading_layers.h"
#include "models/families/families.h"

#include <limits>

namespace mlxcel {

namespace {

Config phi3small_config(const Config& given) {
  if (given.get_or("blocksparse_homo_head_pattern", false)) {
    throw ConfigError(
        cat(given.file(),
            ": \"blocksparse_homo_head_pattern\" is not supported for Phi 3 "
            "small"),
        "all heads would see the same blocks",
        "published models have a pattern for each head");
  }
  Config config =
      renamed(given, {{"ff_intermediate_size", "intermediate_size"}});
  double scale = config.get_or("rope_position_scale", 1.0);
  nlohmann::json values = {
      {"rope_theta", config.get_or("rope_embedding_base", 1e6)}};
  if (scale != 1 && config.has("rope_scaling")) {
    throw ConfigError(
        cat(config.file(), ": rope_position_scale is ", scale),
        "rope_scaling is stated too, and published models have one of them",
        "take config.json from the model's original publisher");
  }
  if (scale != 1) {  // of the positions
    values["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 1 / scale}};
  }
  return with_values(config, values);
}

AttentionSpec phi3small_attention(const Config& config) {
  AttentionSpec attention = grouped_query_attention(config);
  attention.bias = AttentionBias::all;
  if (config.get_or("mup_use_scaling", true)) {
    attention.scale =
        config.get_or("mup_attn_multiplier", 1.f) / float(attention.heads.dim);
  }
  return attention;
}

// Those that the published tokenizer never makes.
std::vector<int32_t> phi3small_unused_tokens() {
  std::vector<int32_t> tokens{100256, 100258, 100259, 100260, 100264, 100265};
  for (int32_t token = 100267; token < 100352; ++token) {
    tokens.push_back(token);
  }
  return tokens;
}

DecoderSpec phi3small_decoder(const Config& given) {
  Config config = phi3small_config(given);
  BlockSpec block{
      .norm = layer_norm(config, "layer_norm_epsilon"),
      .attention = phi3small_attention(config)};
  float limit = number_or_off(config, "gegelu_limit", 20);
  block.mlp = {
      .intermediate_size = config.get<int>("intermediate_size"),
      .kind = MlpKind::in_turn,
      .bias = MlpBias::all,
      .clamp = {
          .alpha = 1.702f,  // x sigmoid(1.702 x) is near GELU
          .limit = limit > 0 ? limit : std::numeric_limits<float>::max()}};
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::tied);
  int dense = config.get_or("dense_attention_every_n_layers", 2);
  for (size_t layer = 0; layer < decoder.blocks.size(); ++layer) {
    if (dense <= 0 || int(layer + 1) % dense != 0) {
      decoder.blocks[layer].attention.extras.scores.sparse = {
          .size = config.get_or("blocksparse_block_size", 64),
          .local = config.get_or("blocksparse_num_local_blocks", 16),
          .stride = config.get_or("blocksparse_vert_stride", 8)};
    }
  }
  float embedding = number_or_off(config, "mup_embedding_multiplier", 10);
  decoder.embedding_scale = embedding != 0 ? embedding : 1;
  float width = number_or_off(config, "mup_width_multiplier", 8);
  decoder.extras.logit_scale = width != 0 ? 1 / width : 1;
  decoder.extras.head.masked_tokens =
      config.get_or("dummy_token_indices", phi3small_unused_tokens());
  return decoder;
}

}  // namespace

const Family phi3small = {
    .name = "Phi 3 Small",
    .type = "Phi3Small",
    .model_types = {"phi3small"},
    .architectures = {"Phi3SmallForCausalLM"},
    .decoder = phi3small_decoder,
    .names = hf_decoder_names(
        {split_groups(
             "layers.{l}.self_attn.query_key_value",
             {"layers.{l}.attention.q",
              "layers.{l}.attention.k",
              "layers.{l}.attention.v"}),
         {"layers.{l}.self_attn.dense", {"layers.{l}.attention.o"}},
         {"final_layernorm", {"final_norm"}}}),
    .dropped = {"*.rotary_emb.inv_freq"},
};

}  // namespace mlxcel
