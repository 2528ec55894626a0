#include "models/family.h"

#include "core/error.h"
#include "models/config_reading_layers.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

namespace mlxcel {

namespace {

using nlohmann::json;

// A config switch that changes what a decoder computes, and the values at which
// it does nothing. Missing and null always do nothing.
struct Feature {
  std::string_view key;
  std::vector<json> neutral;
};

const std::vector<Feature>& known_features() {
  static const std::vector<Feature> features = {
      {"attention_bias", {false}},
      {"mlp_bias", {false}},
      {"use_bias", {false}},
      {"bias", {false}},
      {"clip_qkv", {}},
      {"qk_layernorm", {false}},
      {"use_qk_norm", {false}},
      {"sliding_window", {}},
      {"attention_chunk_size", {}},
      {"attention_k_eq_v", {false}},
      {"num_kv_shared_layers", {0}},
      {"hidden_size_per_layer_input", {0}},
      {"enable_moe_block", {false}},
      {"use_cla", {false}},
      {"query_pre_attn_scalar", {}},
      {"attention_multiplier", {}},
      {"attn_logit_softcapping", {0}},
      {"final_logit_softcapping", {0}},
      {"logit_scale", {1}},
      {"logits_scaling", {1}},
      {"embedding_multiplier", {1}},
      {"residual_multiplier", {1}},
      {"scale_emb", {1}},
      {"scale_depth", {1}},
      {"parallel_attn", {false}},
      {"use_parallel_residual", {false}},
      {"alibi", {false}},
      {"position_embedding_type", {"rope", "rotary"}},
      {"no_rope_layers", {}},
      {"rope_interleaved", {false}},
      {"kv_lora_rank", {}},
      {"router_bias", {false}},
      {"llama_4_scaling", {}},
      {"num_experts", {0}},
      {"num_local_experts", {0}},
      {"n_routed_experts", {0}},
      {"is_causal", {true}},
      {"use_bidirectional_attention", {false}},
      {"is_encoder_decoder", {false}},
      {"add_cross_attention", {false}},
      {"moe_latent_size", {}},
      {"norm_type", {}},
      {"partial_rotary_factor", {1}},
      {"mlp_type", {}},
  };
  return features;
}

bool layer_types_neutral(const json& types) {
  return types.is_array() &&
         std::all_of(types.begin(), types.end(), [](const json& type) {
           return type == "full_attention";
         });
}

void refuse_unread(
    const Family& family, const Config& config, std::string_view key) {
  throw ConfigError(
      cat(config.file(), ": \"", key, "\" is not supported for ", family.name),
      cat("its value ",
          config.json().at(std::string(key)).dump(),
          " would change the result, and this family does not read it"),
      "check model_type, or take config.json from the original publisher");
}

constexpr const char* kPartial = "partial_rotary_factor";

// One table's settings, or an object of them for each kind of layers. A
// proportional table is the one that reads the share in every family.
void check_partial_rotation(
    const Family& family, const Config& config, const json& section) {
  if (!section.is_object()) {
    return;
  }
  for (const json& inner : section) {
    check_partial_rotation(family, config, inner);
  }
  auto share = section.find(kPartial);
  auto type = section.find("rope_type");
  if (type == section.end()) {
    type = section.find("type");  // its older name
  }
  bool reads = type != section.end() && *type == "proportional";
  if (share != section.end() && !share->is_null() && *share != 1 && !reads) {
    throw ConfigError(
        cat(config.file(),
            ": \"",
            kPartial,
            "\" is not supported for ",
            family.name),
        cat("its value ",
            share->dump(),
            " would change the rotation, and this family does not read it"),
        "check model_type, or take config.json from the original publisher");
  }
}

void check_partial_rotation(const Family& family, const Config& config) {
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    auto section = config.json().find(key);
    if (section != config.json().end()) {
      check_partial_rotation(family, config, *section);
    }
  }
}

void check_features(const Family& family, const Config& config) {
  auto reads = [&](std::string_view key) {
    return std::find(family.features.begin(), family.features.end(), key) !=
           family.features.end();
  };
  for (const Feature& feature : known_features()) {
    if (!config.has(feature.key) || reads(feature.key)) {
      continue;
    }
    const json& value = config.json().at(std::string(feature.key));
    if (std::find(feature.neutral.begin(), feature.neutral.end(), value) ==
        feature.neutral.end()) {
      refuse_unread(family, config, feature.key);
    }
  }
  if (!reads(kPartial)) {
    check_partial_rotation(family, config);
  }
  if (config.has("layer_types") && !reads("layer_types") &&
      !layer_types_neutral(config.json().at("layer_types"))) {
    refuse_unread(family, config, "layer_types");
  }
}

void check_number(
    const Config& config, bool good, std::string_view name, double value) {
  if (!good) {
    throw ConfigError(
        cat(config.file(), ": ", name, " is ", value),
        "no model can be built with it",
        "take config.json from the model's original publisher");
  }
}

void check_size(const Config& config, std::string_view name, int64_t value) {
  check_number(config, value > 0 && value <= kMaxSize, name, double(value));
}

void check_norm(const Config& config, const NormSpec& norm) {
  check_number(
      config,
      norm.eps >= 0 && std::isfinite(norm.eps),
      "the norm eps",
      norm.eps);
}

void check_clamp(const Config& config, const SwigluClamp& clamp) {
  check_number(
      config,
      std::isfinite(clamp.limit) && clamp.limit >= 0,
      "the limit of the clamped SwiGLU",
      clamp.limit);
  check_number(
      config,
      std::isfinite(clamp.alpha) && clamp.alpha != 0,
      "the alpha of the clamped SwiGLU",
      clamp.alpha);
}

void check_moe(const Config& config, const MoeSpec& moe) {
  check_number(config, moe.experts > 0, "the number of experts", moe.experts);
  check_number(
      config,
      moe.identity_experts >= 0 && moe.identity_experts <= kMaxSize,
      "the number of identity experts",
      moe.identity_experts);
  int routes = moe.experts + moe.identity_experts;
  check_number(
      config,
      moe.experts_per_token > 0 && moe.experts_per_token <= routes,
      cat("num_experts_per_tok, of ", routes, " experts,"),
      moe.experts_per_token);
  const ExpertGroups& groups = moe.routing.groups;
  check_number(
      config,
      groups.count > 0 && routes % groups.count == 0,
      cat("the number of groups, of ", routes, " experts,"),
      groups.count);
  check_number(
      config,
      groups.kept > 0 && groups.kept <= groups.count &&
          moe.experts_per_token <= routes / groups.count * groups.kept,
      cat("the number of groups that a token may use, of ",
          groups.count,
          " for ",
          moe.experts_per_token,
          " experts,"),
      groups.kept);
  check_size(config, "the size of an expert", moe.expert.intermediate_size);
  check_number(
      config,
      std::isfinite(moe.routing.tolerance) && moe.routing.tolerance >= 0,
      "the tolerance of the sparse mixer",
      moe.routing.tolerance);
  check_number(
      config,
      std::isfinite(moe.routing.scale),
      "the scale of the experts' shares",
      moe.routing.scale);
  check_clamp(config, moe.expert.clamp);
  check_clamp(config, moe.shared.clamp);
  check_number(
      config,
      moe.shared.intermediate_size >= 0 &&
          moe.shared.intermediate_size <= kMaxSize,
      "the size of the shared expert",
      moe.shared.intermediate_size);
}

void check_attention(const Config& config, const AttentionSpec& attention) {
  check_size(config, "num_attention_heads", attention.heads.query);
  check_size(config, "num_key_value_heads", attention.heads.key_value);
  check_size(config, "head_dim", attention.heads.dim);
  check_size(
      config,
      "num_attention_heads times head_dim",
      int64_t(attention.heads.query) * attention.heads.dim);
  check_number(
      config,
      attention.heads.query % attention.heads.key_value == 0,
      cat("num_attention_heads ",
          attention.heads.query,
          " is no multiple of num_key_value_heads, which"),
      attention.heads.key_value);
  check_number(
      config,
      std::isfinite(attention.scale) && attention.scale > 0,
      "the attention scale",
      attention.scale);
  check_number(
      config,
      std::isfinite(attention.extras.clip) && attention.extras.clip >= 0,
      "the bound of q, k and v",
      attention.extras.clip);
  check_number(
      config,
      std::isfinite(attention.softcap) && attention.softcap >= 0,
      "the attention soft cap",
      attention.softcap);
  check_number(
      config,
      attention.window.size >= 0,
      "the attention window",
      double(attention.window.size));
  const QueryScaling& scaling = attention.extras.query_scaling;
  check_number(
      config,
      scaling.length >= 0 && std::isfinite(scaling.slope),
      "the length after which queries grow",
      double(scaling.length));
}

void check_part(
    const Config& config, const PartSpec& part, int64_t hidden_size) {
  for (const RoleShape& role : part.roles(hidden_size)) {
    check_size(config, cat("the number of rows of ", role.kind), role.rows);
    if (role.cols != 0) {
      check_size(
          config, cat("the number of columns of ", role.kind), role.cols);
    }
  }
}

void check_block(
    const Config& config, const BlockSpec& block, int64_t hidden_size) {
  check_norm(config, block.norm);
  if (block.halves != Halves::feed_forward_only) {
    if (block.mixer) {
      check_part(config, *block.mixer, hidden_size);
    }
    if (const AttentionSpec* attention = attention_of(block)) {
      check_attention(config, *attention);
    }
  }
  if (block.halves != Halves::mixer_only) {
    if (block.feed_forward) {
      check_part(config, *block.feed_forward, hidden_size);
      if (block.moe) {  // inside the part
        check_moe(config, *block.moe);
      }
    } else if (block.moe) {
      check_moe(config, *block.moe);
    } else {
      check_size(config, "intermediate_size", block.mlp.intermediate_size);
      check_clamp(config, block.mlp.clamp);
    }
  }
}

void check_spec(const Config& config, const DecoderSpec& spec) {
  check_size(config, "hidden_size", spec.hidden_size);
  check_size(config, "vocab_size", spec.vocab_size);
  check_norm(config, spec.final_norm);
  check_number(
      config,
      std::isfinite(spec.logit_softcap) && spec.logit_softcap >= 0,
      "the logit soft cap",
      spec.logit_softcap);
  auto check_scale = [&](std::string_view name, float scale) {
    check_number(config, std::isfinite(scale), name, scale);
  };
  check_scale("the scale of the embedding", spec.embedding_scale);
  check_scale("the scale of the residuals", spec.extras.residual_scale);
  check_scale("the scale of the logits", spec.extras.logit_scale);
  const StreamSpec& streams = spec.extras.streams;
  check_number(
      config,
      streams.count > 0 && streams.count <= 64,
      "the number of streams",
      streams.count);
  check_number(
      config,
      streams.active >= 0 && streams.active < streams.count,
      cat("the active stream, of ", streams.count, ","),
      streams.active);
  if (spec.extras.per_layer.size != 0) {
    check_size(
        config, "hidden_size_per_layer_input", spec.extras.per_layer.size);
    check_size(
        config, "vocab_size_per_layer_input", spec.extras.per_layer.vocab_size);
    check_size(
        config,
        "hidden_size_per_layer_input times num_hidden_layers",
        int64_t(spec.extras.per_layer.size) * int64_t(spec.blocks.size()));
  }
  // Each expert has names of its own; the largest models have 30000 of them.
  constexpr int64_t kMaxExperts = 1 << 16;
  int64_t experts = 0;
  for (const BlockSpec& block : spec.blocks) {
    experts += block.moe ? block.moe->experts : 0;
    check_number(
        config,
        experts <= kMaxExperts,
        "the number of experts in all layers",
        double(experts));
    check_block(config, block, spec.hidden_size);
  }
}

// `*` stands for any characters, also none.
bool matches(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, star = std::string_view::npos, resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') {
    ++p;
  }
  return p == pattern.size();
}

// The number after "layers." in a key; -1: none.
int64_t layer_of(std::string_view key) {
  constexpr std::string_view layers = "layers.";
  size_t at = key.find(layers);
  if (at == std::string_view::npos) {
    return -1;
  }
  const char* begin = key.data() + at + layers.size();
  const char* end = key.data() + key.size();
  int64_t layer = -1;
  auto [stop, error] = std::from_chars(begin, end, layer);
  return error == std::errc() && stop < end && *stop == '.' ? layer : -1;
}

}  // namespace

std::string_view name_of(ModelKind kind) {
  switch (kind) {
    case ModelKind::generation:
      return "generation";
    case ModelKind::embedding:
      return "embedding";
    case ModelKind::reranker:
      return "reranker";
    case ModelKind::audio:
      return "audio";
    case ModelKind::detection:
      return "detection";
  }
  return "";
}

std::string_view name_of(DirectoryRoute route) {
  switch (route) {
    case DirectoryRoute::config_backed:
      return "ConfigBacked";
    case DirectoryRoute::nonstandard:
      return "Nonstandard";
    case DirectoryRoute::vlm:
      return "Vlm";
    case DirectoryRoute::mistral3_dynamic:
      return "Mistral3Dynamic";
  }
  return "";
}

std::string_view name_of(WeightRoute route) {
  switch (route) {
    case WeightRoute::none:
      return "None";
    case WeightRoute::config_backed:
      return "ConfigBacked";
    case WeightRoute::llama_family:
      return "LlamaFamily";
    case WeightRoute::special:
      return "Special";
  }
  return "";
}

DecoderSpec decoder_spec(const Family& family, const Config& config) {
  if (family.decoder == nullptr) {
    throw ConfigError(
        cat(config.file(), ": ", family.name, " models cannot be run yet"),
        "the family is known, but its blocks are not built",
        "`mlxcel arch` lists the families that run");
  }
  check_features(family, config);
  DecoderSpec spec = unchecked_spec(family, config);
  check_spec(config, spec);
  return spec;
}

DecoderSpec unchecked_spec(const Family& family, const Config& config) {
  return family.decoder(with_defaults(config, family.defaults));
}

bool is_dropped(const Family& family, std::string_view key, size_t layers) {
  if (family.further_layers == FurtherLayers::dropped &&
      layer_of(key) >= int64_t(layers)) {
    return true;
  }
  return std::any_of(
      family.dropped.begin(),
      family.dropped.end(),
      [&](const std::string& pattern) { return matches(pattern, key); });
}

}  // namespace mlxcel
