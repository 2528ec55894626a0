// Kimi Linear: delta rule layers, latent attention that does not turn, experts.
// Checkpoints of the publisher, and those that transformers writes: in the
// publisher's names, but with dense layers below block_sparse_moe too, or in
// its own, with stacked experts and one convolution for q, k and v.
#include "models/config_reading_latent.h"
#include "models/config_reading_layers.h"
#include "models/config_reading_moe.h"
#include "models/config_reading_recurrent.h"
#include "models/families/families.h"
#include "models/hybrid_names.h"

#include <algorithm>

namespace mlxcel {

namespace {

// With the usual names of what the published config calls otherwise.
Config kimi_linear_config(const Config& given) {
  return with_defaults(
      renamed(
          given,
          {{"num_experts_per_token", "num_experts_per_tok"},
           {"moe_renormalize", "norm_topk_prob"},
           {"num_expert_group", "n_group"}}),
      {{"qk_nope_head_dim", 128},
       {"qk_rope_head_dim", 64},
       {"v_head_dim", 128},
       {"routed_scaling_factor", 2.446},
       {"first_k_dense_replace", 1}});
}

// The publisher's section, or the keys of transformers' own configs.
Config kimi_linear_sizes(const Config& config) {
  if (std::optional<Config> section = config.find_sub("linear_attn_config")) {
    return with_defaults(*section, {{"short_conv_kernel_size", 4}});
  }
  return Config(
      {{"num_heads", config.get_or("linear_num_heads", 32)},
       {"head_dim", config.get_or("linear_head_dim", 128)},
       {"short_conv_kernel_size", config.get_or("linear_conv_kernel_dim", 4)}},
      config.file());
}

std::shared_ptr<GatedDeltaSpec> kimi_linear_delta(const Config& config) {
  Config linear = kimi_linear_sizes(config);
  auto spec = std::make_shared<GatedDeltaSpec>();
  int heads = positive_size(linear, "num_heads"),
      dim = positive_size(linear, "head_dim");
  spec->heads = {heads, heads, dim, dim};
  spec->taps = positive_size(linear, "short_conv_kernel_size");
  spec->projections = DeltaProjections::channels;
  spec->split_convolution = true;
  spec->gate = GateForm::sigmoid_of_norm;
  spec->norm_eps = config.get<float>("rms_norm_eps");
  return spec;
}

// layer_types, or what kda_layers leaves; it counts from 1.
std::vector<std::string> kimi_linear_kinds(const Config& config, int layers) {
  std::optional<std::vector<int>> delta;
  if (std::optional<Config> section = config.find_sub("linear_attn_config")) {
    delta = section->find<std::vector<int>>("kda_layers");
  }
  std::vector<std::string> kinds;
  for (int layer = 1; layer <= layers; ++layer) {
    bool full =
        delta ? std::find(delta->begin(), delta->end(), layer) == delta->end()
              : layer > 1 && layer % 4 == 1;
    kinds.emplace_back(full ? "full_attention" : "linear_attention");
  }
  return layer_kinds(
      config, kinds.size(), {"full_attention", "linear_attention"}, kinds);
}

DecoderSpec kimi_linear_decoder(const Config& given) {
  Config config = kimi_linear_config(given);
  require_value(config, "moe_router_activation_func", "sigmoid");
  LatentAttentionSpec attention = latent_attention(config, {});
  attention.rope = nullptr;
  BlockSpec block = latent_block(config, attention);
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::own);
  auto delta = kimi_linear_delta(config);
  auto kinds = kimi_linear_kinds(config, int(decoder.blocks.size()));
  for (size_t layer = 0; layer < decoder.blocks.size(); ++layer) {
    if (kinds[layer] == "linear_attention") {
      decoder.blocks[layer].mixer = delta;
    }
  }
  if (config.get_or("num_experts", 0) > 0) {
    mix_by_type(config, decoder, deepseek3_moe(config));
  }
  return decoder;
}

}  // namespace

const Family kimi_linear = {
    .name = "Kimi Linear",
    .type = "KimiLinear",
    .model_types = {"kimi_linear"},
    .architectures = {"KimiLinearForCausalLM"},
    .decoder = kimi_linear_decoder,
    .names = kimi_linear_names(),
    .features =
        {"attention_bias", "num_experts", "kv_lora_rank", "layer_types"},
    .dropped = {"model.mtp*", "*.rotary_emb.inv_freq"},
};

}  // namespace mlxcel
