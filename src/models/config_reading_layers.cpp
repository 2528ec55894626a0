#include "models/config_reading_layers.h"

#include "core/error.h"

#include <utility>

namespace mlxcel {

namespace {

using nlohmann::json;

// The flat config of one kind of layers, for rope_table().
Config rope_config(
    const Config& config,
    const char* layer_type,
    std::string_view theta_key,
    double theta) {
  json flat = config.json();
  json section = json::object();
  auto nested = flat.find("rope_parameters");
  if (nested != flat.end() && nested->is_object()) {
    auto own = nested->find(layer_type);
    if (own != nested->end() && own->is_object()) {
      section = *own;
    }
  }
  bool full = std::string_view(layer_type) == "full_attention";
  auto scaling = flat.find("rope_scaling");
  if (full && scaling != flat.end() && scaling->is_object()) {
    section.update(*scaling);
  }
  if (!section.contains("rope_theta")) {
    section["rope_theta"] =
        theta_key.empty() ? theta : config.get_or(theta_key, theta);
  }
  flat.erase("rope_scaling");
  flat["rope_parameters"] = std::move(section);
  return Config(std::move(flat), config.file());
}

}  // namespace

Config with_defaults(const Config& config, const json& defaults) {
  json filled = defaults;
  filled.update(config.json());
  Config out(std::move(filled), config.file());
  out.set_layout(config.layout());
  return out;
}

Config with_values(const Config& config, const json& values) {
  json changed = config.json();
  changed.update(values);
  Config out(std::move(changed), config.file());
  out.set_layout(config.layout());
  return out;
}

void rotate_sliding_layers(DecoderSpec& decoder) {
  for (BlockSpec& block : decoder.blocks) {
    if (block.attention.window.size == 0) {
      block.attention.rope = nullptr;
    }
  }
}

void rotate_by_type(
    const Config& config, DecoderSpec& decoder, const RopeByType& rope) {
  std::shared_ptr<const RopeTable> full, sliding;
  for (BlockSpec& block : decoder.blocks) {
    AttentionSpec& attention = block.attention;
    bool slides = attention.window.size > 0;
    auto& table = slides ? sliding : full;
    if (table == nullptr) {
      table = rope_table(
          slides ? rope_config(
                       config,
                       "sliding_attention",
                       rope.sliding_theta_key,
                       rope.sliding_theta)
                 : rope_config(
                       config, "full_attention", "rope_theta", rope.full_theta),
          attention.heads.dim);
    }
    attention.rope = table;
  }
}

BlockSpec glm_block(const Config& config) {
  BlockSpec block = gated_block(config, {.interleaved = true, .partial = 0.5});
  block.attention.bias = config.get_or("attention_bias", true)
                             ? AttentionBias::qkv
                             : AttentionBias::none;
  return block;
}

AttentionSpec hunyuan_attention(const Config& config) {
  AttentionSpec attention = grouped_query_attention(config);
  if (config.get_or("use_qk_norm", true)) {
    attention.qk_norm = QkNorm::per_head;
    attention.extras.qk_norm_order = QkNormOrder::after_rope;
  }
  return attention;
}

}  // namespace mlxcel
