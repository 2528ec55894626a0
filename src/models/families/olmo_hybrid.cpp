// OLMo Hybrid: gated delta layers with norms before their halves, and attention
// layers with norms after them.
#include "models/config_reading_layers.h"
#include "models/config_reading_recurrent.h"
#include "models/families/families.h"

#include <algorithm>

namespace mlxcel {

namespace {

// A base of null leaves the rotation out; a missing one is the class's default.
bool without_positions(const Config& config) {
  auto is_null = [](const Config& section) {
    auto theta = section.json().find("rope_theta");
    return theta != section.json().end() && theta->is_null();
  };
  auto rope = config.find_sub("rope_parameters");
  return rope && rope->json().contains("rope_theta") ? is_null(*rope)
                                                     : is_null(config);
}

// The class sizes the delta layers by the attention heads, and makes sure of
// one layer that sees everything.
Config olmo_hybrid_config(const Config& config) {
  nlohmann::json missing = nlohmann::json::object();
  auto fill = [&](const char* key, auto value) {
    if (!config.has(key)) {
      missing[key] = value;
    }
    return config.get_or(key, value);
  };
  int heads = positive_size(config, "num_attention_heads");
  int key_heads = fill("linear_num_key_heads", heads);
  fill("linear_num_value_heads", heads);
  int64_t hidden = positive_size(config, "hidden_size");
  int key_dim = fill(
      "linear_key_head_dim", int(hidden * 3 / (4 * std::max(1, key_heads))));
  fill("linear_value_head_dim", 2 * key_dim);
  int layers = config.get<int>("num_hidden_layers");
  if (!config.has("layer_types") && layers > 0 && layers < 4) {
    std::vector<std::string> types(size_t(layers), "linear_attention");
    types.back() = "full_attention";
    missing["layer_types"] = types;
  }
  return with_values(config, missing);
}

DecoderSpec olmo_hybrid_decoder(const Config& given) {
  Config config = olmo_hybrid_config(given);
  BlockSpec block{
      .norms = NormPlacement::post,
      .norm = rms_norm(config),
      .attention = grouped_query_attention(config),
      .mlp = gated_mlp(config)};
  block.attention.qk_norm = QkNorm::projection;
  if (without_positions(config)) {
    block.attention.rope = nullptr;
  }
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::own);

  auto mixer = gated_delta_mixer(config);
  mixer->projections = DeltaProjections::separate;
  mixer->split_convolution = true;
  mixer->beta_scale = config.get_or("linear_allow_neg_eigval", true) ? 2 : 1;
  mixer->norm_eps = 1e-5f;  // fixed in the published class
  auto kinds = linear_or_full(config, decoder.blocks.size(), 4);
  for (size_t layer = 0; layer < kinds.size(); ++layer) {
    if (kinds[layer] == "linear_attention") {
      decoder.blocks[layer].mixer = mixer;
      decoder.blocks[layer].norms = NormPlacement::pre;
    }
  }
  return decoder;
}

std::vector<NameRule> olmo_hybrid_names() {
  // A norm's name says where it stands, which its role follows from: before the
  // MLP in one kind of layer, after the attention in the other.
  std::vector<std::string> middle{
      "layers.{l}.mlp_norm", "layers.{l}.attention_post_norm"};
  std::vector<NameRule> names = {
      {"layers.{l}.attention_layer_norm", {"layers.{l}.attention_norm"}},
      {"layers.{l}.input_layernorm", {"layers.{l}.attention_norm"}},
      {"layers.{l}.feedforward_layer_norm", middle},
      {"layers.{l}.post_attention_layernorm", middle},
      {"layers.{l}.post_feedforward_layernorm", {"layers.{l}.mlp_post_norm"}},
      {"layers.{l}.linear_attn.g_proj", {"layers.{l}.delta.z"}},
      {"layers.{l}.linear_attn.o_norm", {"layers.{l}.delta.norm"}},
      {"layers.{l}.linear_attn.o_proj", {"layers.{l}.delta.out"}}};
  for (const std::string name : {"q", "k", "v", "a", "b"}) {
    names.push_back(
        {cat("layers.{l}.linear_attn.", name, "_proj"),
         {"layers.{l}.delta." + name}});
  }
  return names;
}

}  // namespace

const Family olmo_hybrid = {
    .name = "OLMo Hybrid",
    .type = "OlmoHybrid",
    .model_types = {"olmo_hybrid"},
    .architectures = {"OlmoHybridForCausalLM"},
    .decoder = olmo_hybrid_decoder,
    .defaults = {{"rms_norm_eps", 1e-6}},
    .names = hf_decoder_names(join(
        {olmo_hybrid_names(), gated_delta_names("layers.{l}.linear_attn")})),
    .features = {"attention_bias", "layer_types"},
};

}  // namespace mlxcel
