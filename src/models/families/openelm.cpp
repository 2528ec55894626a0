// OpenELM: heads and MLP widths that grow with the layers, norms on each head
// of q and k, one projection for q, k and v and one for gate and up.
#include "models/config_reading.h"
#include "models/families/families.h"

#include <algorithm>
#include <cmath>

namespace mlxcel {

namespace {

// The multiple of `divisor` nearest to `value`, but no less than nine tenths
// of it: the rule of the published class.
int nearest_multiple(double value, int divisor) {
  int out = std::max(divisor, int(value + divisor / 2.0) / divisor * divisor);
  return double(out) < 0.9 * value ? out + divisor : out;
}

DecoderSpec openelm_decoder(const Config& published) {
  Config config = renamed(
      published,
      {{"model_dim", "hidden_size"},
       {"num_transformer_layers", "num_hidden_layers"},
       {"rope_freq_constant", "rope_theta"},
       {"share_input_output_layers", "tie_word_embeddings"}});
  NormSpec norm{
      .kind = NormKind::rms, .eps = config.get_or("rms_norm_eps", 1e-6f)};
  auto query = config.get<std::vector<int>>("num_query_heads");
  auto key_value = config.get<std::vector<int>>("num_kv_heads");
  auto widths = config.get<std::vector<double>>("ffn_multipliers");
  BlockSpec block{.norm = norm};
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::tied);
  size_t layers = decoder.blocks.size();
  if (std::min({query.size(), key_value.size(), widths.size()}) < layers) {
    throw ConfigError(
        cat(config.file(), ": not every layer has its heads and width"),
        cat("num_hidden_layers is ",
            layers,
            ", with ",
            query.size(),
            " num_query_heads, ",
            key_value.size(),
            " num_kv_heads and ",
            widths.size(),
            " ffn_multipliers"),
        "take config.json from the model's original publisher");
  }
  int dim = config.get<int>("head_dim");
  int divisor = std::max(1, config.get_or("ffn_dim_divisor", 256));
  auto rope = rope_table(config, dim);
  bool normed = config.get_or("normalize_qk_projections", true);
  bool gated = config.get_or("ffn_with_glu", true);
  for (size_t layer = 0; layer < layers; ++layer) {
    AttentionSpec& attention = decoder.blocks[layer].attention;
    attention.heads = {query[layer], key_value[layer], dim};
    attention.scale = 1 / std::sqrt(float(dim));
    attention.rope = rope;
    attention.qk_norm = normed ? QkNorm::per_head : QkNorm::none;
    decoder.blocks[layer].mlp = {
        .intermediate_size =
            nearest_multiple(widths[layer] * decoder.hidden_size, divisor),
        .activation =
            activation_from_name(config, "activation_fn_name", "swish"),
        .kind = gated ? MlpKind::gated : MlpKind::plain};
  }
  return decoder;
}

FamilyNames openelm_names() {
  FamilyNames names = hf_decoder_names({
      {"token_embeddings", {"embedding"}},
      {"layers.{l}.attn_norm", {"layers.{l}.attention_norm"}},
      split_rows(
          "layers.{l}.attn.qkv_proj",
          {"layers.{l}.attention.q",
           "layers.{l}.attention.k",
           "layers.{l}.attention.v"}),
      {"layers.{l}.attn.q_norm", {"layers.{l}.attention.q_norm"}},
      {"layers.{l}.attn.k_norm", {"layers.{l}.attention.k_norm"}},
      {"layers.{l}.attn.out_proj", {"layers.{l}.attention.o"}},
      {"layers.{l}.ffn_norm", {"layers.{l}.mlp_norm"}},
      fused_gate_up("layers.{l}.ffn.proj_1"),
      {"layers.{l}.ffn.proj_2", {"layers.{l}.mlp.down"}},
  });
  names.spellings = {{"transformer.", ""}};
  return names;
}

}  // namespace

const Family openelm = {
    .name = "OpenELM",
    .type = "OpenELM",
    .model_types = {"openelm"},
    .architectures = {"OpenELMForCausalLM"},
    .decoder = openelm_decoder,
    .names = openelm_names(),
    .dropped = {"*.pos_embedding.inv_freq"},
};

}  // namespace mlxcel
