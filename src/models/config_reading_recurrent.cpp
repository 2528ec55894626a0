#include "models/config_reading_recurrent.h"

#include "core/error.h"
#include "models/config_reading_layers.h"

#include <algorithm>
#include <limits>
#include <map>

namespace mlxcel {

namespace {

std::string listed(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) {
    out += (out.empty() ? "" : ", ") + name;
  }
  return out;
}

}  // namespace

std::vector<std::string> layer_kinds(
    const Config& config,
    size_t layers,
    const std::vector<std::string>& known,
    std::vector<std::string> fallback) {
  auto kinds = config.get_or("layer_types", std::move(fallback));
  if (kinds.size() != layers) {
    throw ConfigError(
        cat(config.file(), ": layer_types has ", kinds.size(), " entries"),
        cat("num_hidden_layers is ", layers),
        "name the type of each layer");
  }
  for (size_t layer = 0; layer < layers; ++layer) {
    if (std::find(known.begin(), known.end(), kinds[layer]) == known.end()) {
      throw ConfigError(
          cat(config.file(),
              ": layer_types names \"",
              kinds[layer],
              "\" for layer ",
              layer),
          "this family has no such layers",
          cat("known: ", listed(known)));
    }
  }
  return kinds;
}

std::vector<std::string> linear_or_full(
    const Config& config, size_t layers, int interval) {
  std::vector<std::string> fallback;
  for (size_t layer = 0; layer < layers; ++layer) {
    bool full = (int(layer) + 1) % interval == 0;
    fallback.push_back(full ? "full_attention" : "linear_attention");
  }
  return layer_kinds(
      config, layers, {"full_attention", "linear_attention"}, fallback);
}

std::string layer_letters(const Config& config) {
  static const std::map<std::string, char> names = {
      {"M", 'M'},
      {"mamba", 'M'},
      {"linear_attention", 'M'},
      {"*", '*'},
      {"attention", '*'},
      {"full_attention", '*'},
      {"-", '-'},
      {"mlp", '-'},
      {"E", 'E'},
      {"moe", 'E'}};
  const char* key = "hybrid_override_pattern";
  for (const char* other : {"layer_types", "layers_block_type"}) {
    key = config.has(other) ? other : key;
  }
  std::vector<std::string> kinds;
  if (config.has(key) && config.json().at(key).is_string()) {
    for (char letter : config.get<std::string>(key)) {
      kinds.emplace_back(1, letter);
    }
  } else {
    kinds = config.get<std::vector<std::string>>(key);
  }
  std::string letters;
  for (const std::string& kind : kinds) {
    auto found = names.find(kind);
    if (found == names.end()) {
      throw ConfigError(
          cat(config.file(), ": ", key, " names \"", kind, "\""),
          "this family has no such layers",
          "known: M mamba, * attention, - mlp, E moe");
    }
    letters += found->second;
  }
  int layers = config.get_or("num_hidden_layers", int(letters.size()));
  if (size_t(layers) != letters.size()) {
    throw ConfigError(
        cat(config.file(), ": ", key, " has ", letters.size(), " layers"),
        cat("num_hidden_layers is ", layers),
        "name the type of each layer");
  }
  return letters;
}

void require_silu(const Config& config, std::string_view key) {
  if (activation_from_name(config, key, "silu") != Activation::silu) {
    throw ConfigError(
        cat(config.file(),
            ": ",
            key,
            " is \"",
            config.get<std::string>(key),
            "\""),
        "the recurrent layers of this family are built with silu",
        "take config.json from the model's original publisher");
  }
}

BlockSpec mixer_block(
    const NormSpec& norm, std::shared_ptr<const PartSpec> mixer) {
  BlockSpec block;
  block.norm = norm;
  block.mixer = std::move(mixer);
  block.halves = Halves::mixer_only;
  return block;
}

std::shared_ptr<MambaSpec> mamba_mixer(const Config& config) {
  require_silu(config, "hidden_act");
  int hidden = config.get<int>("hidden_size");
  auto mixer = std::make_shared<MambaSpec>();
  mixer->channels = config.get_or<int64_t>(
      "intermediate_size",
      int64_t(config.get_or("expand", 2.0) * double(hidden)));
  mixer->state_size = config.get_or<int64_t>("state_size", 16);
  const nlohmann::json& json = config.json();
  bool automatic =
      !config.has("time_step_rank") || json.at("time_step_rank") == "auto";
  mixer->dt_rank =
      automatic ? (hidden + 15) / 16 : config.get<int64_t>("time_step_rank");
  mixer->convolution = {
      .taps = config.get_or("conv_kernel", 4),
      .channels = mixer->channels,
      .bias = config.get_or("use_conv_bias", true)};
  mixer->projection_bias = config.get_or("use_bias", false);
  return mixer;
}

std::shared_ptr<StateSpaceSpec> state_space_mixer(
    const Config& config, const StateSpaceKeys& keys, float norm_eps) {
  auto mixer = std::make_shared<StateSpaceSpec>();
  mixer->heads = {
      .heads = config.get<int>(keys.heads),
      .groups = config.get<int>(keys.groups),
      .head_dim = config.get<int64_t>(keys.head_dim),
      .state_size = config.get<int64_t>(keys.state_size)};
  mixer->taps = config.get<int>(keys.taps);
  mixer->convolution_bias = is_set(config, keys.convolution_bias, true);
  auto limits = config.get_or("time_step_limit", std::vector<float>());
  mixer->limits = {0, std::numeric_limits<float>::infinity()};
  if (limits.size() == 2) {
    mixer->limits = {limits[0], limits[1]};
  } else if (!limits.empty()) {
    throw ConfigError(
        cat(config.file(), ": time_step_limit has ", limits.size(), " numbers"),
        "it is the least and the largest step",
        "write two numbers");
  }
  mixer->norm_eps = norm_eps;
  return mixer;
}

std::shared_ptr<GatedDeltaSpec> gated_delta_mixer(const Config& config) {
  require_silu(config, "hidden_act");
  auto mixer = std::make_shared<GatedDeltaSpec>();
  mixer->heads = {
      .key_heads = positive_size(config, "linear_num_key_heads"),
      .value_heads = positive_size(config, "linear_num_value_heads"),
      .key_dim = positive_size(config, "linear_key_head_dim"),
      .value_dim = positive_size(config, "linear_value_head_dim")};
  if (mixer->heads.value_heads % mixer->heads.key_heads != 0) {
    throw ConfigError(
        cat(config.file(),
            ": linear_num_value_heads is ",
            mixer->heads.value_heads),
        cat("it is no multiple of linear_num_key_heads ",
            mixer->heads.key_heads,
            ", and value heads share key heads in equal groups"),
        "take config.json from the model's original publisher");
  }
  mixer->taps = positive_size(
      with_defaults(config, {{"linear_conv_kernel_dim", 4}}),
      "linear_conv_kernel_dim");
  mixer->norm_eps = config.get<float>("rms_norm_eps");
  return mixer;
}

std::vector<NameRule> mamba_mixer_names(const std::string& block) {
  auto role = [](const char* kind) { return cat("layers.{l}.mamba.", kind); };
  return {
      {block + ".in_proj", {role("in")}},
      {block + ".conv1d", {role("conv")}},
      {block + ".conv1d.bias", {role("conv_bias")}},
      split_rows(block + ".x_proj", {role("dt_low"), role("b"), role("c")}),
      {block + ".dt_proj", {role("dt")}},
      {block + ".dt_layernorm", {role("dt_norm")}},
      {block + ".b_layernorm", {role("b_norm")}},
      {block + ".c_layernorm", {role("c_norm")}},
      {block + ".A_log", {role("a_log")}},
      {block + ".D", {role("d")}},
      {block + ".out_proj", {role("out")}}};
}

std::vector<NameRule> state_space_names(const std::string& block) {
  auto role = [](const char* kind) { return cat("layers.{l}.ssm.", kind); };
  return {
      {block + ".in_proj", {role("in")}},
      {block + ".conv1d", {role("conv")}},
      {block + ".conv1d.bias", {role("conv_bias")}},
      {block + ".A_log", {role("a_log")}},
      {block + ".D", {role("d")}},
      {block + ".dt_bias", {role("dt_bias")}},
      {block + ".norm", {role("norm")}},
      {block + ".out_proj", {role("out")}}};
}

std::vector<NameRule> gated_delta_names(const std::string& block) {
  auto role = [](const char* kind) { return cat("layers.{l}.delta.", kind); };
  return {
      {block + ".conv1d", {role("conv")}},
      {block + ".q_conv1d", {role("conv_q")}},
      {block + ".k_conv1d", {role("conv_k")}},
      {block + ".v_conv1d", {role("conv_v")}},
      {block + ".A_log", {role("a_log")}},
      {block + ".dt_bias", {role("dt_bias")}},
      {block + ".norm", {role("norm")}},
      {block + ".out_proj", {role("out")}}};
}

FamilyNames backbone_names(const std::vector<NameRule>& mixer) {
  FamilyNames names;
  names.rules = join(
      {{{"embeddings", {"embedding"}},
        {"layers.{l}.norm", {"layers.{l}.attention_norm"}},
        {"norm_f", {"final_norm"}},
        {"lm_head", {"head"}}},
       mixer});
  names.spellings = {{"backbone.", ""}, {"", ""}};
  return names;
}

std::vector<NameRule> join(std::vector<std::vector<NameRule>> lists) {
  std::vector<NameRule> out;
  for (std::vector<NameRule>& list : lists) {
    out.insert(
        out.end(),
        std::make_move_iterator(list.begin()),
        std::make_move_iterator(list.end()));
  }
  return out;
}

}  // namespace mlxcel
