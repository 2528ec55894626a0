// DeepSeek 2: latent attention, a mixture of experts after the first layers
// whose softmax shares are not divided by their sum.
#include "models/config_reading_latent.h"
#include "models/config_reading_moe.h"
#include "models/families/families.h"

#include <string>

namespace mlxcel {

namespace {

// norm_topk_prob is published, but the model does not read it.
MoeSpec deepseek_v2_moe(const Config& config) {
  MoeSpec moe = deepseek_moe(config);
  moe.routing.shares = Shares::as_scored;
  moe.shared.bias = gated_mlp(config).bias;
  if (config.get_or<std::string>("topk_method", "greedy") != "greedy") {
    require_value(config, "topk_method", "group_limited_greedy");
    moe.routing.groups.count = config.get<int>("n_group");
    moe.routing.groups.kept = config.get<int>("topk_group");
  }
  return moe;
}

DecoderSpec deepseek_v2_decoder(const Config& given) {
  Config config = with_deepseek_defaults(
      given,
      {{"n_routed_experts", 64},
       {"n_shared_experts", 2},
       {"moe_intermediate_size", 1407}});
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

const Family deepseek_v2 = deepseek2_family({
    .name = "DeepSeek 2",
    .type = "DeepSeekV2",
    .model_types = {"deepseek_v2"},
    .architectures = {"DeepseekV2ForCausalLM"},
    .decoder = deepseek_v2_decoder,
    .features = {"mlp_bias"},
});

}  // namespace mlxcel
