#include "models/families/qwen3_hybrid.h"

#include "models/config_reading_recurrent.h"
#include "models/gated_attention.h"

#include <algorithm>

namespace mlxcel {

namespace {

// A quarter of a head turns where the config does not say.
Config with_partial_rotation(const Config& config) {
  auto rope = config.find_sub("rope_parameters");
  if (config.json().contains("partial_rotary_factor") ||
      (rope && rope->has("partial_rotary_factor"))) {
    return config;
  }
  nlohmann::json json = config.json();
  json["partial_rotary_factor"] = 0.25;
  Config out(std::move(json), config.file());
  out.set_layout(config.layout());
  return out;
}

}  // namespace

DecoderSpec qwen3_hybrid_decoder(
    const Config& given, const MlpSpec& mlp, DeltaProjections projections) {
  Config config = with_partial_rotation(given);
  BlockSpec block{.norm = rms_norm(config), .mlp = mlp};
  // An MLX conversion has added the one already.
  block.norm.weight_offset =
      config.layout() == WeightsLayout::published ? 1 : 0;
  auto attention = std::make_shared<GatedAttentionSpec>();
  attention->attention = grouped_query_attention(config);
  block.mixer = attention;
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::own);

  auto mixer = gated_delta_mixer(config);
  mixer->projections = projections;
  int interval = std::max(1, config.get_or("full_attention_interval", 4));
  auto kinds = linear_or_full(config, decoder.blocks.size(), interval);
  for (size_t layer = 0; layer < kinds.size(); ++layer) {
    if (kinds[layer] == "linear_attention") {
      decoder.blocks[layer].mixer = mixer;
    }
  }
  return decoder;
}

std::vector<NameRule> qwen3_hybrid_names() {
  const std::string block = "layers.{l}.linear_attn";
  return join(
      {{queries_and_gates("layers.{l}.self_attn.q_proj"),
        {block + ".in_proj_qkvz", {"layers.{l}.delta.qkvz"}},
        {block + ".in_proj_ba", {"layers.{l}.delta.ba"}},
        split_rows(
            block + ".in_proj_qkv",
            {"layers.{l}.delta.q", "layers.{l}.delta.k", "layers.{l}.delta.v"}),
        {block + ".in_proj_z", {"layers.{l}.delta.z"}},
        {block + ".in_proj_b", {"layers.{l}.delta.b"}},
        {block + ".in_proj_a", {"layers.{l}.delta.a"}}},
       gated_delta_names(block)});
}

FamilyNames qwen3_5_names(const std::vector<NameRule>& mixture) {
  FamilyNames names = hf_decoder_names(join({qwen3_hybrid_names(), mixture}));
  names.spellings = {
      {"model.language_model.", ""},
      {"language_model.model.", "language_model."},
      {"model.", ""}};
  return names;
}

}  // namespace mlxcel
