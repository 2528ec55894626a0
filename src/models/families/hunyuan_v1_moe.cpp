// Hunyuan V1 MoE: Hunyuan with renormalized softmax shares and an MLP for every
// row.
#include "models/config_reading_layers.h"
#include "models/config_reading_moe.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

// Configs state one number for all layers, or a list with one a layer.
int hunyuan_v1_moe_number(const Config& config, const char* key, size_t layer) {
  auto list = config.json().find(key);
  if (list == config.json().end() || !list->is_array()) {
    return config.get<int>(key);
  }
  auto values = config.get<std::vector<int>>(key);
  if (values.size() <= layer) {
    throw ConfigError(
        cat(config.file(), ": ", key, " has no entry for layer ", layer),
        cat("it lists ", values.size()),
        "take config.json from the model's original publisher");
  }
  return values[layer];
}

DecoderSpec hunyuan_v1_moe_decoder(const Config& config) {
  BlockSpec block{
      .norm = rms_norm(config),
      .attention = hunyuan_attention(config),
      .mlp = gated_mlp(config)};
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::tied);
  for (size_t layer = 0; layer < decoder.blocks.size(); ++layer) {
    auto number = [&](const char* key) {
      return hunyuan_v1_moe_number(config, key, layer);
    };
    // The reference sizes experts and shared MLP by intermediate_size.
    MlpSpec expert{
        .intermediate_size = block.mlp.intermediate_size,
        .activation = block.mlp.activation};
    decoder.blocks[layer].moe = MoeSpec{
        .experts = number("num_experts"),
        .experts_per_token = number("moe_topk"),
        .expert = expert,
        .routing = {.shares = Shares::renormalized},
        .shared = expert};
  }
  return decoder;
}

std::vector<NameRule> hunyuan_v1_moe_names() {
  std::vector<NameRule> names =
      deepseek_moe_names("layers.{l}.mlp", "shared_mlp");
  names.insert(
      names.end(),
      {{"layers.{l}.mlp.gate.wg", {"layers.{l}.moe.router"}},
       {"layers.{l}.self_attn.query_layernorm",
        {"layers.{l}.attention.q_norm"}},
       {"layers.{l}.self_attn.key_layernorm",
        {"layers.{l}.attention.k_norm"}}});
  return names;
}

}  // namespace

const Family hunyuan_v1_moe = {
    .name = "Hunyuan V1 MoE",
    .type = "HunyuanV1Moe",
    .model_types = {"hunyuan_v1_moe"},
    .architectures = {"HunYuanMoEV1ForCausalLM"},
    .decoder = hunyuan_v1_moe_decoder,
    .names = hf_decoder_names(hunyuan_v1_moe_names()),
    .features = {"attention_bias", "use_qk_norm", "num_experts"},
};

}  // namespace mlxcel
