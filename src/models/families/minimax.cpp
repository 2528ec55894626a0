// MiniMax Text 01: lightning attention beside full attention, mixtures of
// experts, and residuals that begin after the norms.
#include "models/config_reading_recurrent.h"
#include "models/families/families.h"
#include "models/lightning.h"
#include "models/wrapped_parts.h"

namespace mlxcel {

namespace {

std::shared_ptr<NormedResidualSpec> minimax_half(
    const Config& config,
    const BlockSpec& block,
    NormedResidualSpec::Half half,
    const std::string& key) {
  auto out = std::make_shared<NormedResidualSpec>();
  out->half = half;
  out->block = block;
  out->alpha = config.get_or(key + "_alpha_factor", 1.0f);
  out->beta = config.get_or(key + "_beta_factor", 1.0f);
  return out;
}

DecoderSpec minimax_decoder(const Config& config) {
  require_silu(config, "hidden_act");
  BlockSpec block{
      .norm = rms_norm(config),
      .attention = grouped_query_attention(config, {.theta = 1e6})};
  if (config.has("sliding_window")) {
    block.attention.window = config.get<int64_t>("sliding_window");
  }
  block.moe = MoeSpec{
      .experts = config.get<int>("num_local_experts"),
      .experts_per_token = config.get_or("num_experts_per_tok", 2),
      .expert = {.intermediate_size = config.get<int>("intermediate_size")},
      .routing = {.shares = Shares::renormalized}};
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::own);

  size_t layers = decoder.blocks.size();
  std::vector<std::string> fallback;
  for (size_t layer = 0; layer < layers; ++layer) {
    fallback.push_back(layer % 2 == 0 ? "full_attention" : "linear_attention");
  }
  auto kinds = layer_kinds(
      config, layers, {"full_attention", "linear_attention"}, fallback);
  for (size_t layer = 0; layer < layers; ++layer) {
    BlockSpec inner = block;
    bool linear = kinds[layer] == "linear_attention";
    if (linear) {
      auto mixer = std::make_shared<LightningSpec>();
      mixer->heads = block.attention.heads.query;
      mixer->head_dim = block.attention.heads.dim;
      mixer->block_size = positive_size(config, "block_size");
      mixer->norm_eps = 1e-6f;  // the published class states none
      mixer->slope_factor =
          float(1 - double(layer) / (double(layers) - 1 + 1e-5) + 1e-5);
      inner.mixer = mixer;
    }
    using Half = NormedResidualSpec::Half;
    BlockSpec& outer = decoder.blocks[layer];
    outer.mixer = minimax_half(
        config, inner, Half::mixer, linear ? "linear_attn" : "full_attn");
    outer.feed_forward = minimax_half(config, block, Half::feed_forward, "mlp");
  }
  return decoder;
}

std::vector<NameRule> minimax_names() {
  const std::string block = "layers.{l}.self_attn";
  return join(
      {{{block + ".qkv_proj", {"layers.{l}.lightning.qkv"}},
        {block + ".output_gate", {"layers.{l}.lightning.gate"}},
        {block + ".slope_rate", {"layers.{l}.lightning.slope"}},
        {block + ".query_decay", {"layers.{l}.lightning.query_decay"}},
        {block + ".key_decay", {"layers.{l}.lightning.key_decay"}},
        {block + ".diagonal_decay", {"layers.{l}.lightning.diagonal_decay"}},
        {block + ".norm", {"layers.{l}.lightning.norm"}},
        {block + ".out_proj", {"layers.{l}.lightning.out"}}},
       moe_names(
           "layers.{l}.block_sparse_moe",
           {.gate = "w1", .up = "w3", .down = "w2"})});
}

}  // namespace

const Family minimax = {
    .name = "MiniMax Text 01",
    .type = "MiniMax",
    .model_types = {"minimax"},
    .architectures = {"MiniMaxForCausalLM"},
    .decoder = minimax_decoder,
    .defaults =
        {{"num_local_experts", 8}, {"rms_norm_eps", 1e-5}, {"block_size", 256}},
    .names = hf_decoder_names(minimax_names()),
    .features = {"num_local_experts", "layer_types", "sliding_window"},
};

}  // namespace mlxcel
