// DeepSeek 3 (and Kimi K2): latent attention, experts by sigmoid scores with a
// stored bias, from the best groups.
#include "models/config_reading_latent.h"
#include "models/config_reading_moe.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec deepseek_v3_decoder(const Config& given) {
  Config config = with_deepseek_defaults(
      given,
      {{"n_routed_experts", 256},
       {"n_shared_experts", 1},
       {"n_group", 8},
       {"topk_group", 4},
       {"num_experts_per_tok", 8},
       {"routed_scaling_factor", 2.5},
       {"first_k_dense_replace", 3},
       {"moe_intermediate_size", 2048}});
  DecoderSpec decoder = deepseek3_latent_decoder(config);
  if (config.has("n_routed_experts")) {
    mix_after_dense(config, decoder, deepseek3_moe(config));
  }
  return decoder;
}

}  // namespace

const Family deepseek_v3 = deepseek3_family({
    .name = "DeepSeek 3",
    .type = "DeepSeekV3",
    .model_types = {"deepseek_v3", "kimi_k2"},
    .architectures = {"DeepseekV3ForCausalLM"},
    .decoder = deepseek_v3_decoder,
});

}  // namespace mlxcel
