// AFMoE: gated attention with norms on each head of q and k, rotation on
// sliding layers alone, norms on both sides of each half, and experts that
// sigmoids choose behind the first dense layers.
#include "models/config_reading_layers.h"
#include "models/config_reading_moe.h"
#include "models/families/families.h"

#include <cmath>

namespace mlxcel {

namespace {

// transformers' defaults.
Config afmoe_config(const Config& config) {
  return with_defaults(
      config,
      {{"head_dim", 128},
       {"rms_norm_eps", 1e-5},
       {"num_dense_layers", 1},
       {"num_experts", 64},
       {"num_experts_per_tok", 6},
       {"num_shared_experts", 2},
       {"route_scale", 1.0},
       {"sliding_window", 1024},
       {"global_attn_every_n_layers", 4}});
}

// The shares are sigmoids over their sum, kept from zero by 1e-20.
MoeSpec afmoe_mixture(const Config& config) {
  MoeSpec moe = deepseek3_moe(config);
  // The published class knows no groups, and always divides.
  moe.routing.shares = Shares::renormalized;
  moe.routing.groups = {};
  moe.routing.scale = config.get<float>("route_scale");
  return moe;
}

DecoderSpec afmoe_decoder(const Config& given) {
  Config config = afmoe_config(given);
  BlockSpec block = gated_block(config);
  block.norms = NormPlacement::sandwich;
  block.attention.qk_norm = QkNorm::per_head;
  block.attention.extras.gate = OutputGate::unbiased;
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::own);
  if (config.get_or("mup_enabled", false)) {
    decoder.embedding_scale = std::sqrt(float(decoder.hidden_size));
  }
  int every = config.get<int>("global_attn_every_n_layers");
  slide_layers(config, decoder, [&](int layer) {
    return every <= 0 || (layer + 1) % every != 0;
  });
  rotate_sliding_layers(decoder);
  MoeSpec moe = afmoe_mixture(config);
  int dense = config.get<int>("num_dense_layers");
  for (size_t layer = size_t(std::max(dense, 0)); layer < decoder.blocks.size();
       ++layer) {
    decoder.blocks[layer].moe = moe;
  }
  return decoder;
}

std::vector<NameRule> afmoe_names() {
  std::vector<NameRule> names = deepseek_moe_names();
  const std::string stacked = "layers.{l}.mlp.experts.";
  const std::string expert = "layers.{l}.moe.experts.{e}.";
  names.insert(
      names.end(),
      {{"layers.{l}.mlp.router.gate", {"layers.{l}.moe.router"}},
       {"layers.{l}.mlp.expert_bias", {"layers.{l}.moe.selection_bias"}},
       stack_experts(stacked + "gate_proj", expert + "gate"),
       stack_experts(stacked + "up_proj", expert + "up"),
       stack_experts(stacked + "down_proj", expert + "down"),
       {"layers.{l}.self_attn.gate_proj", {"layers.{l}.attention.gate"}},
       {"layers.{l}.post_attention_layernorm",
        {"layers.{l}.attention_post_norm"}},
       {"layers.{l}.pre_mlp_layernorm", {"layers.{l}.mlp_norm"}},
       {"layers.{l}.post_mlp_layernorm", {"layers.{l}.mlp_post_norm"}}});
  return names;
}

}  // namespace

const Family afmoe = {
    .name = "AFMoE",
    .type = "AfMoe",
    .model_types = {"afmoe"},
    .architectures = {"AfmoeForCausalLM"},
    .decoder = afmoe_decoder,
    .defaults = {{"moe_intermediate_size", 1408}},
    .names = hf_decoder_names(afmoe_names()),
    .features =
        {"attention_bias", "sliding_window", "layer_types", "num_experts"},
    .dropped = {"*.rotary_emb.inv_freq"},
};

}  // namespace mlxcel
