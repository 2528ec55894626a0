// Qwen 2 MoE: Qwen 2 with a mixture of experts in most layers, beside an expert
// that serves every row.
#include "models/config_reading_layers.h"
#include "models/config_reading_moe.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec qwen2_moe_decoder(const Config& given) {
  Config config = with_defaults(
      given, {{"sliding_window", 4096}, {"max_window_layers", 28}});
  BlockSpec block = gated_block(config);
  block.attention.bias = config.get_or("qkv_bias", true) ? AttentionBias::qkv
                                                         : AttentionBias::none;
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::own);
  MoeSpec moe = softmax_moe(config, "moe_intermediate_size");
  add_shared_expert(config, moe);
  mix_layers(config, decoder, moe);
  // Every second layer below max_window_layers, from the first on: the rule of
  // transformers' config class, which differs from Qwen 2's.
  bool windowed = config.get_or("use_sliding_window", false);
  int end = windowed ? config.get<int>("max_window_layers") : 0;
  slide_layers(config, decoder, [&](int layer) {
    return windowed && layer % 2 == 0 && layer < end;
  });
  return decoder;
}

std::vector<NameRule> qwen2_moe_names() {
  std::vector<NameRule> names = moe_names("layers.{l}.mlp");
  std::vector<NameRule> shared = shared_expert_names("layers.{l}.mlp");
  names.insert(names.end(), shared.begin(), shared.end());
  return names;
}

}  // namespace

const Family qwen2_moe = {
    .name = "Qwen 2 MoE",
    .type = "Qwen2Moe",
    .model_types = {"qwen2_moe"},
    .architectures = {"Qwen2MoeForCausalLM"},
    .decoder = qwen2_moe_decoder,
    .defaults =
        {{"moe_intermediate_size", 1408},
         {"num_experts", 60},
         {"num_experts_per_tok", 4},
         {"rms_norm_eps", 1e-6},
         {"shared_expert_intermediate_size", 5632}},
    .names = hf_decoder_names(qwen2_moe_names()),
    .features = {"sliding_window", "layer_types", "num_experts"},
    .dropped = {"*.rotary_emb.inv_freq"},
};

}  // namespace mlxcel
