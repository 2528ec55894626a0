// Jamba: Mamba layers with attention (without positions) and mixtures of
// experts at fixed steps.
#include "models/config_reading_recurrent.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec jamba_decoder(const Config& config) {
  require_silu(config, "hidden_act");
  BlockSpec block{.norm = rms_norm(config), .mlp = gated_mlp(config)};
  block.attention = grouped_query_attention(config);
  block.attention.rope = nullptr;
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::own);

  auto mixer = std::make_shared<MambaSpec>();
  int hidden = decoder.hidden_size;
  mixer->channels = int64_t(config.get_or("mamba_expand", 2)) * hidden;
  mixer->state_size = config.get_or<int64_t>("mamba_d_state", 16);
  bool automatic = !config.has("mamba_dt_rank") ||
                   config.json().at("mamba_dt_rank") == "auto";
  mixer->dt_rank =
      automatic ? (hidden + 15) / 16 : config.get<int64_t>("mamba_dt_rank");
  mixer->convolution = {
      .taps = config.get_or("mamba_d_conv", 4),
      .channels = mixer->channels,
      .bias = config.get_or("mamba_conv_bias", true)};
  mixer->projection_bias = config.get_or("mamba_proj_bias", false);
  mixer->inner_norms = InnerNorms::learned;
  mixer->inner_eps = block.norm.eps;

  MoeSpec moe{
      .experts = config.get_or("num_experts", 16),
      .experts_per_token = config.get_or("num_experts_per_tok", 2),
      .expert = block.mlp};
  auto at_step = [&](const char* kind, int period, int offset, size_t layer) {
    int step = config.get_or(cat(kind, "_layer_period"), period);
    int first = config.get_or(cat(kind, "_layer_offset"), offset);
    return step > 0 && int(layer) % step == first;
  };
  for (size_t layer = 0; layer < decoder.blocks.size(); ++layer) {
    if (!at_step("attn", 8, 4, layer)) {
      decoder.blocks[layer].mixer = mixer;
    }
    if (moe.experts > 1 && at_step("expert", 2, 1, layer)) {
      decoder.blocks[layer].moe = moe;
    }
  }
  return decoder;
}

std::vector<NameRule> jamba_mlp_names() {
  return {
      {"layers.{l}.pre_ff_layernorm", {"layers.{l}.mlp_norm"}},
      {"layers.{l}.feed_forward.gate_proj", {"layers.{l}.mlp.gate"}},
      {"layers.{l}.feed_forward.up_proj", {"layers.{l}.mlp.up"}},
      {"layers.{l}.feed_forward.down_proj", {"layers.{l}.mlp.down"}},
      {"layers.{l}.feed_forward.router", {"layers.{l}.moe.router"}},
      {"final_layernorm", {"final_norm"}}};
}

}  // namespace

const Family jamba = {
    .name = "Jamba",
    .type = "Jamba",
    .model_types = {"jamba"},
    .architectures = {"JambaForCausalLM"},
    .decoder = jamba_decoder,
    .defaults = {{"rms_norm_eps", 1e-6}},
    .names = hf_decoder_names(join(
        {jamba_mlp_names(),
         moe_names("layers.{l}.feed_forward"),
         mamba_mixer_names("layers.{l}.mamba")})),
    .features = {"num_experts", "layer_types"},
};

}  // namespace mlxcel
