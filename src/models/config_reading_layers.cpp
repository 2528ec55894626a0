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
  for (const auto& [key, value] : defaults.items()) {
    if (value.is_object() && filled[key].is_null()) {
      filled[key] = value;
    }
  }
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

int layer_number(const Config& config, std::string_view key, size_t layer) {
  auto list = config.json().find(std::string(key));
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

void rotate_sliding_layers(DecoderSpec& decoder) {
  for (BlockSpec& block : decoder.blocks) {
    if (block.attention.window.size == 0) {
      block.attention.rope = nullptr;
    }
  }
}

void slide_by_pattern(const Config& config, DecoderSpec& decoder) {
  const bool windowed = config.has("sliding_window");
  slide_layers(config, decoder, [&](int layer) {
    auto stated = config.json().find("sliding_window_pattern");
    if (stated != config.json().end() && stated->is_string()) {
      auto letters = stated->get<std::string>();
      return windowed && !letters.empty() &&
             letters[size_t(layer) % letters.size()] == 'L';
    }
    int every = config.get_or("sliding_window_pattern", 4);
    return windowed && every > 0 && (layer + 1) % every != 0;
  });
  if (windowed) {
    rotate_sliding_layers(decoder);
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

bool is_on(const Config& config, std::string_view key) {
  auto value = config.json().find(std::string(key));
  if (value == config.json().end() || value->is_boolean()) {
    return config.get_or(key, true);
  }
  return config.get_or(key, 0.0) != 0;
}

std::vector<int> rotating_layers(const Config& config, size_t num_layers) {
  auto stated = config.find<std::vector<int>>("no_rope_layers");
  if (stated && !stated->empty()) {
    if (stated->size() < num_layers) {
      throw ConfigError(
          cat(config.file(),
              ": no_rope_layers has ",
              stated->size(),
              " entries"),
          cat("num_hidden_layers is ", num_layers),
          "state 1 or 0 for each layer");
    }
    return *stated;
  }
  int interval = config.get_or("no_rope_layer_interval", 4);
  std::vector<int> rotating(num_layers, 1);
  for (size_t i = 0; i < num_layers; ++i) {
    rotating[i] = interval <= 0 || (i + 1) % size_t(interval) != 0;
  }
  return rotating;
}

BlockSpec glm_block(const Config& config) {
  BlockSpec block = gated_block(config, {.interleaved = true, .partial = 0.5});
  block.attention.bias = config.get_or("attention_bias", true)
                             ? AttentionBias::qkv
                             : AttentionBias::none;
  return block;
}

void share_across_layers(const Config& config, DecoderSpec& decoder) {
  if (!config.get_or("use_cla", false)) {
    return;
  }
  int factor = config.get<int>("cla_share_factor");
  if (factor <= 0) {
    throw ConfigError(
        cat(config.file(), ": cla_share_factor is ", factor),
        "layers share keys in groups of that size",
        "take config.json from the model's original publisher");
  }
  for (size_t layer = 0; layer < decoder.blocks.size(); ++layer) {
    int source = int(layer) - int(layer) % factor;
    if (source != int(layer)) {
      decoder.blocks[layer].attention.extras.shared = {
          Sharing::projected, source};
    }
  }
}

AttentionSpec hunyuan_attention(const Config& config) {
  AttentionSpec attention = grouped_query_attention(config);
  attention.qk_norm = QkNorm::per_head;
  attention.extras.qk_norm_order = QkNormOrder::after_rope;
  return attention;
}

}  // namespace mlxcel
