#include "models/config_reading_gemma.h"

#include "core/error.h"
#include "models/altup.h"
#include "models/gemma4_feed_forward.h"

#include <algorithm>
#include <cmath>

namespace mlxcel {

namespace {

// Heads of a layer that sees everything: per_layer_config says it for each, or
// the keys of all such layers do.
void widen_heads(const Config& config, AttentionSpec& attention, int layer) {
  HeadCounts& heads = attention.heads;
  if (std::optional<Config> each = config.find_sub("per_layer_config")) {
    if (std::optional<Config> own = each->find_sub(std::to_string(layer))) {
      heads.dim = own->get_or("head_dim", heads.dim);
      heads.key_value = own->get_or("num_key_value_heads", heads.key_value);
    }
  } else if (attention.window.size == 0) {
    heads.dim = config.get<int>("global_head_dim");
    if (config.get_or("attention_k_eq_v", false)) {
      heads.key_value =
          config.get_or("num_global_key_value_heads", heads.key_value);
    }
  }
}

// One value a layer, or the same for all.
template <typename T>
std::vector<T> for_each_layer(
    const Config& config, std::string_view key, size_t layers) {
  const auto& value = config.json().at(std::string(key));
  if (!value.is_array()) {
    return std::vector<T>(layers, config.get<T>(key));
  }
  auto out = config.get<std::vector<T>>(key);
  if (out.size() != layers) {
    throw ConfigError(
        cat(config.file(), ": ", key, " has ", out.size(), " entries"),
        cat("num_hidden_layers is ", layers),
        "state one for each layer");
  }
  return out;
}

// The first ten layers of a model with more cut 95% of their gates, unless the
// config says otherwise.
std::vector<double> sparsities(const Config& config, size_t layers) {
  if (config.has("activation_sparsity_pattern")) {
    return for_each_layer<double>(
        config, "activation_sparsity_pattern", layers);
  }
  std::vector<double> out(layers, 0);
  std::fill_n(out.begin(), layers > 10 ? 10 : 0, 0.95);
  return out;
}

}  // namespace

void share_with_last(const Config& config, DecoderSpec& decoder, int count) {
  int layers = int(decoder.blocks.size());
  if (count < 0 || count >= layers) {
    throw ConfigError(
        cat(config.file(), ": num_kv_shared_layers is ", count),
        cat("of ", layers, " layers, at least one must have its own keys"),
        "take config.json from the model's original publisher");
  }
  for (int layer = layers - count; layer < layers; ++layer) {
    AttentionSpec& attention = decoder.blocks[size_t(layer)].attention;
    int source = layers - count - 1;
    while (source >= 0 && decoder.blocks[size_t(source)].attention.window !=
                              attention.window) {
      --source;
    }
    if (source < 0) {
      throw ConfigError(
          cat(config.file(), ": layer ", layer, " has no keys to share"),
          "no layer of its type stands before the layers that share",
          "check layer_types and num_kv_shared_layers");
    }
    attention.extras.shared = {Sharing::cached, source};
  }
}

BlockSpec gemma_block(const Config& config) {
  BlockSpec block{
      .norms = NormPlacement::sandwich,
      .norm = rms_norm(config),
      .attention = grouped_query_attention(config),
      .mlp = gated_mlp(config, "hidden_activation", "gelu_pytorch_tanh")};
  block.norm.weight_offset = 1;
  block.attention.scale =
      1 / std::sqrt(config.get<float>("query_pre_attn_scalar"));
  return block;
}

DecoderSpec gemma_decoder_of(
    const Config& config, const BlockSpec& block, float softcap) {
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::tied);
  decoder.embedding_scale = std::sqrt(float(decoder.hidden_size));
  decoder.logit_softcap = soft_cap(config, "final_logit_softcapping", softcap);
  return decoder;
}

void gemma3_rotation(const Config& config, DecoderSpec& decoder) {
  rotate_by_type(
      config,
      decoder,
      {.full_theta = 1e6,
       .sliding_theta = 1e4,
       .sliding_theta_key = "rope_local_base_freq"});
}

AttentionSpec unscaled_attention(const Config& config) {
  AttentionSpec attention = grouped_query_attention(config);
  attention.scale = 1;
  attention.qk_norm = QkNorm::per_head;
  attention.extras.value_norm = true;
  return attention;
}

std::vector<NameRule> gemma_norm_names() {
  return {
      {"layers.{l}.post_attention_layernorm",
       {"layers.{l}.attention_post_norm"}},
      {"layers.{l}.pre_feedforward_layernorm", {"layers.{l}.mlp_norm"}},
      {"layers.{l}.post_feedforward_layernorm", {"layers.{l}.mlp_post_norm"}},
  };
}

std::vector<NameRule> per_layer_names() {
  return {
      {"embed_tokens_per_layer", {"per_layer.table"}},
      {"per_layer_model_projection", {"per_layer.projection"}},
      {"per_layer_projection_norm", {"per_layer.norm"}},
      {"layers.{l}.per_layer_input_gate", {"layers.{l}.per_layer.gate"}},
      {"layers.{l}.per_layer_projection", {"layers.{l}.per_layer.projection"}},
      {"layers.{l}.post_per_layer_input_norm", {"layers.{l}.per_layer.norm"}},
  };
}

FamilyNames gemma4_names() {
  std::vector<NameRule> rules = gemma_norm_names();
  for (NameRule& rule : per_layer_names()) {
    rules.push_back(std::move(rule));
  }
  const std::string layer = "layers.{l}.", moe = layer + "moe.";
  const std::string expert = moe + "experts.{e}.";
  const std::string experts = layer + "experts.";
  const std::string part = experts + "switch_glu.";
  rules.insert(
      rules.end(),
      {{layer + "layer_scalar", {layer + "scalar"}},
       {layer + "post_feedforward_layernorm_1", {layer + "mlp.dense_norm"}},
       {layer + "pre_feedforward_layernorm_2", {moe + "input_norm"}},
       {layer + "post_feedforward_layernorm_2", {moe + "output_norm"}},
       {layer + "router.proj", {moe + "router"}},
       {layer + "router.scale", {moe + "router_norm"}},
       {layer + "router.per_expert_scale", {moe + "share_scale"}},
       stack_experts(part + "gate_proj", expert + "gate"),
       stack_experts(part + "up_proj", expert + "up"),
       stack_experts(part + "down_proj", expert + "down")});
  FamilyNames names = hf_decoder_names(rules);
  names.stacks = {
      {.stem = experts + "gate_up_proj",
       .parts = {part + "gate_proj", part + "up_proj"},
       .input_first = false},
      {.stem = experts + "down_proj",
       .parts = {part + "down_proj"},
       .input_first = false}};
  return wrapped(std::move(names));
}

void gemma4_attention(const Config& config, DecoderSpec& decoder) {
  slide_layers(config, decoder, [](int layer) { return (layer + 1) % 6 != 0; });
  decoder.blocks.back().attention.window = {};
  for (size_t layer = 0; layer < decoder.blocks.size(); ++layer) {
    AttentionSpec& attention = decoder.blocks[layer].attention;
    widen_heads(config, attention, int(layer));
    attention.extras.keys_as_values =
        config.get_or("attention_k_eq_v", false) && attention.window.size == 0;
  }
  rotate_by_type(config, decoder, {.full_theta = 1e6, .sliding_theta = 1e4});
  share_with_last(config, decoder, config.get_or("num_kv_shared_layers", 0));
}

void gemma4_feed_forward(const Config& config, DecoderSpec& decoder) {
  bool wide = config.get_or("use_double_wide_mlp", false);
  bool mixed = config.get_or("enable_moe_block", false);
  for (BlockSpec& each : decoder.blocks) {
    if (mixed) {
      each.moe = {
          .experts = config.get<int>("num_experts"),
          .experts_per_token = config.get<int>("top_k_experts"),
          .expert =
              {.intermediate_size = config.get<int>("moe_intermediate_size"),
               .activation = each.mlp.activation},
          .routing = {.shares = Shares::renormalized}};
    }
    auto half = std::make_shared<Gemma4FeedForward>();
    half->mlp = each.mlp;
    half->moe = each.moe;
    half->per_layer_size = decoder.extras.per_layer.size;
    if (wide && each.attention.extras.shared.kind != Sharing::none) {
      half->mlp.intermediate_size *= 2;
    }
    each.feed_forward = std::move(half);
  }
}

void make_altup_blocks(const Config& config, DecoderSpec& decoder) {
  size_t layers = decoder.blocks.size();
  auto widths = for_each_layer<int>(config, "intermediate_size", layers);
  std::vector<double> cuts = sparsities(config, layers);
  for (size_t layer = 0; layer < layers; ++layer) {
    BlockSpec& block = decoder.blocks[layer];
    auto part = std::make_shared<AltUpBlock>();
    part->attention = block.attention;
    part->mlp = block.mlp;
    part->mlp.intermediate_size = widths[layer];
    part->sparsity = cuts[layer];
    part->streams = decoder.extras.streams;
    part->laurel_rank = config.get<int>("laurel_rank");
    part->per_layer_size = decoder.extras.per_layer.size;
    part->scale_corrected = config.get_or("altup_correct_scale", true);
    block.mixer = std::move(part);
    block.halves = Halves::mixer_only;
  }
}

}  // namespace mlxcel
