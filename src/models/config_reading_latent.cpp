#include "models/config_reading_latent.h"

#include "core/error.h"
#include "models/config_reading_layers.h"
#include "models/config_reading_moe.h"

#include <cmath>
#include <optional>
#include <string>
#include <utility>

namespace mlxcel {

namespace {

// Wider heads and vectors are damage; published ones stay below 2000.
constexpr int kMaxDim = 1 << 16;
// Each head of each layer has names of its own; Kimi K2 has 3904.
constexpr int64_t kMaxHeads = 1 << 16;

int dimension(const Config& config, std::string_view key) {
  int value = config.get<int>(key);
  if (value <= 0 || value > kMaxDim) {
    throw ConfigError(
        cat(config.file(), ": ", key, " is ", value),
        cat("expected a size from 1 to ", kMaxDim),
        "take config.json from the model's original publisher");
  }
  return value;
}

void check_heads(const Config& config, int heads) {
  int64_t layers = config.get<int>("num_hidden_layers");
  if (layers > 0 && heads * layers > kMaxHeads) {
    throw ConfigError(
        cat(config.file(),
            ": num_attention_heads ",
            heads,
            " in ",
            layers,
            " layers"),
        cat("more than ", kMaxHeads, " heads in all are taken for damage"),
        "take config.json from the model's original publisher");
  }
}

// Yarn's factor on the scores, once for queries and once for keys: Peng et al.
// 2023, "YaRN", section 3.4, with DeepSeek's weight for all dimensions.
double squared_mscale(const Config& config) {
  std::optional<Config> section = config.find_sub("rope_parameters");
  if (!section) {
    section = config.find_sub("rope_scaling");
  }
  if (!section) {
    return 1;
  }
  auto type = section->get_or<std::string>(
      "rope_type", section->get_or<std::string>("type", "default"));
  double weight = section->get_or("mscale_all_dim", 0.0);
  if (type == "default" || weight == 0) {
    return 1;
  }
  auto factor = section->get<double>("factor");
  double mscale = factor <= 1 ? 1 : 0.1 * weight * std::log(factor) + 1;
  return mscale * mscale;
}

}  // namespace

LatentAttentionSpec latent_attention(
    const Config& config, const RopeDefaults& rope) {
  constexpr float kNormEps = 1e-6f;  // the published class's default
  LatentAttentionSpec spec;
  LatentDims& dims = spec.dims;
  dims.heads = dimension(config, "num_attention_heads");
  check_heads(config, dims.heads);
  dims.plain = dimension(config, "qk_nope_head_dim");
  dims.rope = dimension(config, "qk_rope_head_dim");
  dims.value = dimension(config, "v_head_dim");
  dims.latent = dimension(config, "kv_lora_rank");
  if (config.has("q_lora_rank")) {
    dims.query_rank = dimension(config, "q_lora_rank");
  }
  spec.scale =
      float(squared_mscale(config) / std::sqrt(double(dims.plain + dims.rope)));
  spec.rope = rope_table(config, dims.rope, rope);
  spec.norm = {.kind = NormKind::rms, .eps = kNormEps};
  spec.bias = config.get_or("attention_bias", false) ? AttentionBias::all
                                                     : AttentionBias::none;
  return spec;
}

BlockSpec latent_block(const Config& config, const LatentAttentionSpec& spec) {
  BlockSpec block;
  block.norm = rms_norm(config);
  block.mlp = gated_mlp(config);
  block.mixer = std::make_shared<LatentAttention>(spec);
  return block;
}

DecoderSpec deepseek3_latent_decoder(const Config& config) {
  require_value(config, "topk_method", "noaux_tc");
  require_value(config, "scoring_func", "sigmoid");
  bool interleaved = is_set(config, "rope_interleave", true);
  return uniform_decoder(
      config,
      latent_block(
          config, latent_attention(config, {.interleaved = interleaved})),
      HeadKind::own);
}

std::vector<NameRule> deepseek_latent_names() {
  std::vector<NameRule> names = latent_names();
  for (NameRule& rule : deepseek_moe_names()) {
    names.push_back(std::move(rule));
  }
  return names;
}

Config with_deepseek_defaults(
    const Config& config, const nlohmann::json& others) {
  return with_defaults(
      with_defaults(config, others),
      {{"kv_lora_rank", 512},
       {"q_lora_rank", 1536},
       {"qk_nope_head_dim", 128},
       {"qk_rope_head_dim", 64},
       {"v_head_dim", 128},
       {"rms_norm_eps", 1e-6}});
}

Family deepseek2_family(Family family) {
  family.names = hf_decoder_names(deepseek_latent_names());
  family.features.insert(
      family.features.end(),
      {"attention_bias", "n_routed_experts", "kv_lora_rank"});
  family.dropped = {"*.rotary_emb.inv_freq"};
  return family;
}

Family deepseek3_family(Family family) {
  family = deepseek2_family(std::move(family));
  family.features.emplace_back("rope_interleave");
  family.further_layers = FurtherLayers::dropped;
  return family;
}

void require_value(
    const Config& config, std::string_view key, std::string_view value) {
  auto found = config.find<std::string>(key);
  if (found && *found != value) {
    throw ConfigError(
        cat(config.file(), ": ", key, " \"", *found, "\" is not supported"),
        cat("this family computes with \"", value, "\""),
        "check model_type, or take config.json from the original publisher");
  }
}

}  // namespace mlxcel
