#include "models/config_reading.h"

#include "core/error.h"
#include "models/config_reading_layers.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace mlxcel {

namespace {

// Published models have up to a few hundred. The bound comes before a spec is
// made of each.
constexpr int kMaxLayers = 10000;

int positive(const Config& config, std::string_view key, int value) {
  if (value <= 0) {
    throw ConfigError(
        cat(config.file(), ": ", key, " is ", value),
        "a size must be positive",
        "take config.json from the model's original publisher");
  }
  return value;
}

}  // namespace

Config renamed(const Config& config, const KeyNames& names) {
  nlohmann::json json = config.json();
  for (const auto& [other, usual] : names) {
    auto found = json.find(other);
    if (found != json.end() && !json.contains(usual)) {
      nlohmann::json value = *found;
      json[usual] = std::move(value);
    }
  }
  Config out(std::move(json), config.file());
  out.set_layout(config.layout());
  return out;
}

Config overridden(const Config& config, const KeyNames& names) {
  nlohmann::json json = config.json();
  for (const auto& [other, usual] : names) {
    if (config.has(other)) {
      nlohmann::json value = json.at(other);
      json[usual] = std::move(value);
    }
  }
  Config out(std::move(json), config.file());
  out.set_layout(config.layout());
  return out;
}

int positive_size(const Config& config, std::string_view key) {
  int value = positive(config, key, config.get<int>(key));
  if (value > kMaxSize) {
    throw ConfigError(
        cat(config.file(), ": ", key, " is ", value),
        cat("more than ", kMaxSize, " is taken for damage"),
        "take config.json from the model's original publisher");
  }
  return value;
}

bool is_set(const Config& config, std::string_view key, bool missing) {
  return config.json().contains(std::string(key)) ? config.get_or(key, false)
                                                  : missing;
}

Config gpt2_config(const Config& config) {
  Config out = renamed(
      config,
      {{"n_embd", "hidden_size"},
       {"n_head", "num_attention_heads"},
       {"n_layer", "num_hidden_layers"},
       {"n_positions", "max_position_embeddings"},
       {"n_inner", "intermediate_size"}});
  if (out.has("intermediate_size")) {
    return out;
  }
  nlohmann::json json = out.json();
  json["intermediate_size"] = 4 * int64_t(out.get<int>("hidden_size"));
  Config filled(std::move(json), config.file());
  filled.set_layout(config.layout());
  return filled;
}

DecoderSpec gpt2_like_decoder(
    const Config& config, std::string_view default_activation) {
  AttentionSpec attention;
  attention.heads = head_counts(config);
  attention.scale = config.get_or("scale_attn_weights", true)
                        ? 1 / std::sqrt(float(attention.heads.dim))
                        : 1;
  attention.bias = AttentionBias::all;
  DecoderSpec decoder = uniform_decoder(
      config,
      {.norm = layer_norm(config, "layer_norm_epsilon"),
       .attention = attention,
       .mlp = plain_mlp(
           config, "activation_function", default_activation, MlpBias::all)},
      HeadKind::tied);
  decoder.extras.positions.rows = config.get<int>("max_position_embeddings");
  return decoder;
}

NormSpec layer_norm(
    const Config& config,
    std::string_view key,
    float fallback,
    NormTensors tensors) {
  return {
      .kind = NormKind::layer,
      .eps = config.get_or(key, fallback),
      .tensors = tensors};
}

MlpSpec plain_mlp(
    const Config& config,
    std::string_view act_key,
    std::string_view default_activation,
    MlpBias bias) {
  return {
      .intermediate_size = config.get<int>("intermediate_size"),
      .activation = activation_from_name(config, act_key, default_activation),
      .kind = MlpKind::plain,
      .bias = bias};
}

HeadCounts head_counts(const Config& config) {
  auto size = [&](std::string_view key) {
    return positive(config, key, config.get<int>(key));
  };
  HeadCounts heads;
  heads.query = size("num_attention_heads");
  heads.key_value = config.has("num_key_value_heads")
                        ? size("num_key_value_heads")
                        : heads.query;
  if (config.has("head_dim")) {
    heads.dim = size("head_dim");
    return heads;
  }
  int hidden_size = size("hidden_size");
  if (hidden_size % heads.query != 0) {
    throw ConfigError(
        cat(config.file(), ": the head size is not stated"),
        cat("hidden_size ",
            hidden_size,
            " is no multiple of num_attention_heads ",
            heads.query),
        "state head_dim in the file");
  }
  heads.dim = hidden_size / heads.query;
  return heads;
}

AttentionSpec grouped_query_attention(
    const Config& config, const RopeDefaults& rope) {
  AttentionSpec attention;
  attention.heads = head_counts(config);
  attention.scale = 1 / std::sqrt(float(attention.heads.dim));
  attention.rope = rope_table(config, attention.heads.dim, rope);
  attention.bias = config.get_or("attention_bias", false) ? AttentionBias::all
                                                          : AttentionBias::none;
  return attention;
}

Activation activation_from_name(
    const Config& config, std::string_view key, std::string_view fallback) {
  // The names of transformers; gelu_new and gelu_fast are the tanh formula.
  static const std::vector<std::pair<std::string, Activation>> known = {
      {"silu", Activation::silu},
      {"swish", Activation::silu},
      {"gelu", Activation::gelu},
      {"gelu_python", Activation::gelu},
      {"gelu_pytorch_tanh", Activation::gelu_tanh},
      {"gelu_new", Activation::gelu_tanh},
      {"gelu_fast", Activation::gelu_tanh},
      {"gelu_python_tanh", Activation::gelu_tanh},
      {"gelu_accurate", Activation::gelu_tanh},
      {"relu", Activation::relu},
      {"relu2", Activation::relu_squared},
      {"tanh", Activation::tanh},
      {"sigmoid", Activation::sigmoid},
      {"linear", Activation::none},
  };
  std::string name = config.get_or(key, std::string(fallback));
  std::string names;
  for (const auto& [known_name, activation] : known) {
    if (name == known_name) {
      return activation;
    }
    names += (names.empty() ? "" : ", ") + known_name;
  }
  throw ConfigError(
      cat(config.file(), ": ", key, " \"", name, "\" is not known"),
      "the MLPs cannot be computed without their activation",
      cat("known: ", names));
}

MlpSpec gated_mlp(
    const Config& config,
    std::string_view act_key,
    std::string_view default_activation) {
  MlpSpec mlp;
  mlp.intermediate_size = config.get<int>("intermediate_size");
  mlp.activation = activation_from_name(config, act_key, default_activation);
  mlp.bias = config.get_or("mlp_bias", false) ? MlpBias::all : MlpBias::none;
  return mlp;
}

MoeSpec softmax_moe(const Config& config, std::string_view size_key) {
  MoeSpec moe;
  moe.experts = config.get<int>("num_experts");
  moe.experts_per_token = config.get<int>("num_experts_per_tok");
  moe.expert.intermediate_size = config.get<int>(size_key);
  moe.expert.activation = activation_from_name(config, "hidden_act", "silu");
  moe.routing.shares = config.get_or("norm_topk_prob", false)
                           ? Shares::renormalized
                           : Shares::as_scored;
  return moe;
}

void mix_layers(
    const Config& config, DecoderSpec& decoder, const MoeSpec& moe) {
  int step = positive(
      config, "decoder_sparse_step", config.get_or("decoder_sparse_step", 1));
  std::vector<int> dense = config.get_or("mlp_only_layers", std::vector<int>());
  for (size_t layer = 0; layer < decoder.blocks.size(); ++layer) {
    bool listed =
        std::find(dense.begin(), dense.end(), int(layer)) != dense.end();
    if (!listed && (layer + 1) % size_t(step) == 0) {
      decoder.blocks[layer].moe = moe;
    }
  }
}

NormSpec rms_norm(const Config& config) {
  return {.kind = NormKind::rms, .eps = config.get<float>("rms_norm_eps")};
}

BlockSpec gated_block(const Config& config, const RopeDefaults& rope) {
  return {
      .norm = rms_norm(config),
      .attention = grouped_query_attention(config, rope),
      .mlp = gated_mlp(config)};
}

AttentionBias attention_bias(bool inputs, bool output) {
  if (inputs) {
    return output ? AttentionBias::all : AttentionBias::qkv;
  }
  return output ? AttentionBias::output : AttentionBias::none;
}

void bias_everywhere(
    const Config& config, std::string_view key, BlockSpec& block) {
  if (config.get_or(key, false)) {
    block.attention.bias = AttentionBias::all;
    block.mlp.bias = MlpBias::all;
  }
}

BlockSpec granite_block(const Config& config) {
  BlockSpec block = gated_block(config);
  block.attention.scale = config.get_or("attention_multiplier", 1.f);
  return block;
}

std::vector<std::string_view> granite_features(
    std::vector<std::string_view> others) {
  others.insert(
      others.end(),
      {"attention_bias",
       "attention_multiplier",
       "embedding_multiplier",
       "residual_multiplier",
       "logits_scaling"});
  return others;
}

void scale_as_granite(const Config& config, DecoderSpec& decoder) {
  decoder.embedding_scale = config.get_or("embedding_multiplier", 1.f);
  decoder.extras.residual_scale = config.get_or("residual_multiplier", 1.f);
  decoder.extras.logit_scale = 1 / config.get_or("logits_scaling", 1.f);
}

DecoderSpec uniform_decoder(
    const Config& config, const BlockSpec& block, HeadKind default_head) {
  int num_layers = positive(
      config, "num_hidden_layers", config.get<int>("num_hidden_layers"));
  if (num_layers > kMaxLayers) {
    throw ConfigError(
        cat(config.file(), ": num_hidden_layers is ", num_layers),
        cat("more than ", kMaxLayers, " are taken for damage"),
        "take config.json from the model's original publisher");
  }
  DecoderSpec decoder;
  decoder.hidden_size = config.get<int>("hidden_size");
  decoder.vocab_size = config.get<int>("vocab_size");
  decoder.blocks.assign(size_t(num_layers), block);
  decoder.final_norm = block.norm;
  bool tied =
      config.get_or("tie_word_embeddings", default_head == HeadKind::tied);
  decoder.head = tied ? HeadKind::tied : HeadKind::own;
  return decoder;
}

void slide_layers(
    const Config& config,
    DecoderSpec& decoder,
    const std::function<bool(int layer)>& slides) {
  auto types = config.find<std::vector<std::string>>("layer_types");
  if (types && types->size() < decoder.blocks.size()) {
    throw ConfigError(
        cat(config.file(), ": layer_types has ", types->size(), " entries"),
        cat("num_hidden_layers is ", decoder.blocks.size()),
        "name the type of each layer");
  }
  for (size_t layer = 0; layer < decoder.blocks.size(); ++layer) {
    bool sliding =
        types ? (*types)[layer] == "sliding_attention" : slides(int(layer));
    if (types && !sliding && (*types)[layer] != "full_attention") {
      throw ConfigError(
          cat(config.file(),
              ": layer_types names \"",
              (*types)[layer],
              "\" for layer ",
              layer),
          "this family has no such layers",
          "known: full_attention, sliding_attention");
    }
    if (sliding) {
      if (!config.get_or("use_sliding_window", true)) {
        throw ConfigError(
            cat(config.file(), ": layer ", layer, " has no window"),
            "the config makes it slide, but use_sliding_window is false",
            "correct one of the two");
      }
      int64_t window = config.get<int64_t>("sliding_window");
      if (window <= 0) {
        throw ConfigError(
            cat(config.file(), ": sliding_window is ", window),
            "a layer must see at least its own position",
            "write null for layers that see everything");
      }
      decoder.blocks[layer].attention.window = window;
    }
  }
}

void slide_all_layers(const Config& config, DecoderSpec& decoder) {
  bool windowed = config.has("sliding_window");
  slide_layers(config, decoder, [&](int) { return windowed; });
}

void slide_upper_layers(const Config& given, DecoderSpec& decoder) {
  Config config = with_defaults(
      given, {{"sliding_window", 4096}, {"max_window_layers", 28}});
  bool windowed = config.get_or("use_sliding_window", false) &&
                  config.has("sliding_window");
  bool listed = config.has("layer_types");
  int first = windowed && !listed ? config.get<int>("max_window_layers") : 0;
  slide_layers(
      config, decoder, [&](int layer) { return windowed && layer >= first; });
}

float number_or_off(
    const Config& config, std::string_view key, float fallback) {
  return config.json().contains(key) ? config.get_or(key, 0.f) : fallback;
}

float soft_cap(const Config& config, std::string_view key, float fallback) {
  float cap = number_or_off(config, key, fallback);
  if (config.has(key) && !(cap > 0)) {
    throw ConfigError(
        cat(config.file(), ": ", key, " is ", cap),
        "scores are divided by it, so that it has to be above 0",
        "write null for none, or take config.json from the publisher");
  }
  return cap;
}

}  // namespace mlxcel
