// LongCat Flash: a stored layer is two of ours, each with latent attention and
// an MLP; experts, of which some give their input back, span the pair.
#include "models/config_reading_latent.h"
#include "models/config_reading_layers.h"
#include "models/config_reading_moe.h"
#include "models/families/families.h"
#include "models/shortcut.h"

#include <cmath>

namespace mlxcel {

namespace {

const nlohmann::json& longcat_flash_defaults() {
  static const nlohmann::json values = {
      {"num_layers", 28},
      {"ffn_hidden_size", 12288},
      {"q_lora_rank", 1536},
      {"kv_lora_rank", 512},
      {"qk_nope_head_dim", 128},
      {"qk_rope_head_dim", 64},
      {"v_head_dim", 128},
      {"moe_topk", 12},
      {"n_routed_experts", 512},
      {"zero_expert_num", 256},
      {"rms_norm_eps", 1e-5},
      {"expert_ffn_hidden_size", 2048}};
  return values;
}

// The usual names, and twice the stored layers.
Config longcat_flash_config(const Config& given) {
  Config config = with_defaults(given, longcat_flash_defaults());
  nlohmann::json json = config.json();
  json["num_hidden_layers"] = 2 * int64_t(config.get<int>("num_layers"));
  json["intermediate_size"] = config.get<int>("ffn_hidden_size");
  json["moe_intermediate_size"] = config.get<int>("expert_ffn_hidden_size");
  json["num_experts_per_tok"] = config.get<int>("moe_topk");
  Config out(std::move(json), config.file());
  out.set_layout(config.layout());
  return out;
}

LatentAttentionSpec longcat_flash_attention(const Config& config) {
  LatentAttentionSpec spec =
      latent_attention(config, {.theta = 1e7, .interleaved = true});
  auto hidden = config.get<float>("hidden_size");
  if (spec.dims.query_rank > 0 && config.get_or("mla_scale_q_lora", true)) {
    spec.scale *= std::sqrt(hidden / float(spec.dims.query_rank));
  }
  if (config.get_or("mla_scale_kv_lora", true)) {
    spec.latent_scale = std::sqrt(hidden / float(spec.dims.latent));
  }
  return spec;
}

MoeSpec longcat_flash_moe(const Config& config) {
  MoeSpec moe = deepseek_moe(config);
  moe.routing.scale = config.get_or("routed_scaling_factor", 6.f);
  moe.identity_experts = config.get_or("zero_expert_num", 0);
  moe.router_bias = RouterBias::selection;
  return moe;
}

DecoderSpec longcat_flash_decoder(const Config& given) {
  Config config = longcat_flash_config(given);
  require_value(config, "attention_method", "MLA");
  require_value(config, "zero_expert_type", "identity");
  BlockSpec block = latent_block(config, longcat_flash_attention(config));
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::own);
  MoeSpec moe = longcat_flash_moe(config);
  auto first = std::make_shared<ShortcutMlp>(block.mlp, moe);
  auto second = std::make_shared<ShortcutMlp>(block.mlp, std::nullopt);
  for (size_t layer = 0; layer < decoder.blocks.size(); layer += 2) {
    decoder.blocks[layer].moe = moe;
    decoder.blocks[layer].feed_forward = first;
    decoder.blocks[layer + 1].feed_forward = second;
  }
  return decoder;
}

FamilyNames longcat_flash_names() {
  const std::string layer = "layers.{l/2}.", attention = "self_attn.{l%2}";
  std::vector<NameRule> rules = {
      {layer + "input_layernorm.{l%2}", {"layers.{l}.attention_norm"}},
      {layer + "post_attention_layernorm.{l%2}", {"layers.{l}.mlp_norm"}},
      {layer + attention + ".q_proj", {"layers.{l}.attention.q"}},
      {layer + attention + ".o_proj", {"layers.{l}.attention.o"}},
      {layer + "mlps.{l%2}.gate_proj", {"layers.{l}.mlp.gate"}},
      {layer + "mlps.{l%2}.up_proj", {"layers.{l}.mlp.up"}},
      {layer + "mlps.{l%2}.down_proj", {"layers.{l}.mlp.down"}},
      {layer + "mlp.router.classifier", {"layers.{l}.moe.router"}},
      {layer + "mlp.router.e_score_correction_bias",
       {"layers.{l}.moe.selection_bias"}}};
  for (const auto& more :
       {latent_names(layer + attention), moe_names(layer + "mlp")}) {
    rules.insert(rules.end(), more.begin(), more.end());
  }
  return hf_decoder_names(rules);
}

}  // namespace

const Family longcat_flash = {
    .name = "LongCat Flash",
    .type = "LongcatFlash",
    .model_types = {"longcat_flash"},
    .architectures = {"LongcatFlashForCausalLM"},
    .decoder = longcat_flash_decoder,
    .names = longcat_flash_names(),
    .features = {"attention_bias", "n_routed_experts", "kv_lora_rank"},
    .dropped = {"model.mtp.*", "*.rotary_emb.inv_freq"},
};

}  // namespace mlxcel
