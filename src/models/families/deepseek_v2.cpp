// DeepSeek 2: latent attention, a mixture of experts after the first layers
// whose softmax shares are not divided by their sum.
#include "models/config_reading_latent.h"
#include "models/config_reading_layers.h"
#include "models/config_reading_moe.h"
#include "models/families/families.h"

#include <string>

namespace mlxcel {

namespace {

const nlohmann::json& deepseek_v2_defaults() {
  static const nlohmann::json values = {
      {"kv_lora_rank", 512},
      {"q_lora_rank", 1536},
      {"qk_nope_head_dim", 128},
      {"qk_rope_head_dim", 64},
      {"v_head_dim", 128},
      {"rms_norm_eps", 1e-6},
      {"n_routed_experts", 64},
      {"n_shared_experts", 2},
      {"moe_intermediate_size", 1407}};
  return values;
}

// norm_topk_prob is published, but the model does not read it.
MoeSpec deepseek_v2_moe(const Config& config) {
  MoeSpec moe = deepseek_moe(config);
  moe.routing.shares = Shares::as_scored;
  if (config.get_or<std::string>("topk_method", "greedy") != "greedy") {
    require_value(config, "topk_method", "group_limited_greedy");
    moe.routing.groups.count = config.get<int>("n_group");
    moe.routing.groups.kept = config.get<int>("topk_group");
  }
  return moe;
}

DecoderSpec deepseek_v2_decoder(const Config& given) {
  Config config = with_defaults(given, deepseek_v2_defaults());
  require_value(config, "scoring_func", "softmax");
  DecoderSpec decoder = uniform_decoder(
      config,
      latent_block(config, latent_attention(config, {.interleaved = true})),
      HeadKind::own);
  if (config.has("n_routed_experts")) {
    mix_after_dense(config, decoder, deepseek_v2_moe(config));
  }
  return decoder;
}

}  // namespace

const Family deepseek_v2 = {
    .name = "DeepSeek 2",
    .type = "DeepSeekV2",
    .model_types = {"deepseek_v2"},
    .architectures = {"DeepseekV2ForCausalLM"},
    .decoder = deepseek_v2_decoder,
    .names = hf_decoder_names(deepseek_latent_names()),
    .features = {"attention_bias", "n_routed_experts", "kv_lora_rank"},
    .dropped = {"*.rotary_emb.inv_freq"},
};

}  // namespace mlxcel
