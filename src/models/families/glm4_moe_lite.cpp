// GLM 4 MoE Lite (4.7 Flash): latent attention with the routing of DeepSeek 3.
#include "models/config_reading_latent.h"
#include "models/config_reading_layers.h"
#include "models/config_reading_moe.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

const nlohmann::json& glm4_moe_lite_defaults() {
  static const nlohmann::json values = {
      {"kv_lora_rank", 512},
      {"q_lora_rank", 768},
      {"qk_nope_head_dim", 192},
      {"qk_rope_head_dim", 64},
      {"v_head_dim", 256},
      {"rms_norm_eps", 1e-5},
      {"n_routed_experts", 64},
      {"n_shared_experts", 1},
      {"num_experts_per_tok", 4},
      {"routed_scaling_factor", 1.8},
      {"first_k_dense_replace", 1},
      {"moe_intermediate_size", 1536}};
  return values;
}

DecoderSpec glm4_moe_lite_decoder(const Config& given) {
  Config config = with_defaults(given, glm4_moe_lite_defaults());
  DecoderSpec decoder = deepseek3_latent_decoder(config);
  mix_by_type(config, decoder, deepseek3_moe(config));
  return decoder;
}

}  // namespace

const Family glm4_moe_lite = deepseek3_family({
    .name = "GLM 4 MoE Lite",
    .type = "Glm4MoeLite",
    .model_types = {"glm4_moe_lite"},
    .architectures = {"Glm4MoeLiteForCausalLM"},
    .decoder = glm4_moe_lite_decoder,
});

}  // namespace mlxcel
