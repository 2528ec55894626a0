// Qwen 3 Next and Qwen 3.5: gated delta layers with gated attention in every
// fourth; Qwen 3 Next with a mixture of experts.
#include "models/config_reading_recurrent.h"
#include "models/families/families.h"
#include "models/gated_attention.h"

#include <algorithm>

namespace mlxcel {

namespace {

// A quarter of a head turns where the config does not say.
Config with_partial_rotation(const Config& config) {
  auto rope = config.find_sub("rope_parameters");
  if (config.has("partial_rotary_factor") ||
      (rope && rope->has("partial_rotary_factor"))) {
    return config;
  }
  nlohmann::json json = config.json();
  json["partial_rotary_factor"] = 0.25;
  Config out(std::move(json), config.file());
  out.set_layout(config.layout());
  return out;
}

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
  std::vector<std::string> fallback;
  for (size_t layer = 0; layer < decoder.blocks.size(); ++layer) {
    bool full = (int(layer) + 1) % interval == 0;
    fallback.push_back(full ? "full_attention" : "linear_attention");
  }
  auto kinds = layer_kinds(
      config,
      decoder.blocks.size(),
      {"full_attention", "linear_attention"},
      fallback);
  for (size_t layer = 0; layer < kinds.size(); ++layer) {
    if (kinds[layer] == "linear_attention") {
      decoder.blocks[layer].mixer = mixer;
    }
  }
  return decoder;
}

DecoderSpec qwen3_next_decoder(const Config& config) {
  DecoderSpec decoder =
      qwen3_hybrid_decoder(config, gated_mlp(config), DeltaProjections::packed);
  MoeSpec moe = softmax_moe(config, "moe_intermediate_size");
  moe.routing = config.get_or("norm_topk_prob", true)
                    ? Routing::softmax_renormalized
                    : Routing::softmax;
  moe.shared_intermediate_size =
      config.get<int>("shared_expert_intermediate_size");
  mix_layers(config, decoder, moe);
  return decoder;
}

DecoderSpec qwen3_5_decoder(const Config& config) {
  return qwen3_hybrid_decoder(
      config, gated_mlp(config), DeltaProjections::separate);
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

std::vector<NameRule> shared_expert_names(const std::string& block) {
  auto rule = [&](const char* stem, const char* role) {
    return NameRule{block + stem, {cat("layers.{l}.moe.", role)}};
  };
  return {
      rule(".shared_expert.gate_proj", "shared.gate"),
      rule(".shared_expert.up_proj", "shared.up"),
      rule(".shared_expert.down_proj", "shared.down"),
      rule(".shared_expert_gate", "shared_gate")};
}

FamilyNames qwen3_5_names() {
  FamilyNames names = hf_decoder_names(qwen3_hybrid_names());
  names.spellings = {
      {"model.language_model.", ""},
      {"language_model.model.", "language_model."},
      {"model.", ""}};
  return names;
}

}  // namespace

const Family qwen3_next = {
    .name = "Qwen 3 Next",
    .type = "Qwen3Next",
    .model_types = {"qwen3_next"},
    .architectures = {"Qwen3NextForCausalLM"},
    .decoder = qwen3_next_decoder,
    .names = hf_decoder_names(join(
        {qwen3_hybrid_names(),
         moe_names("layers.{l}.mlp"),
         shared_expert_names("layers.{l}.mlp")})),
    .features = {"attention_bias", "num_experts", "layer_types"},
    .dropped = {"mtp.*", "*.mtp.*"},
};

const Family qwen3_5 = {
    .name = "Qwen 3.5",
    .type = "Qwen35",
    .model_types = {"qwen3_5", "qwen3_5_text"},
    .architectures = {"Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM"},
    .decoder = qwen3_5_decoder,
    .names = qwen3_5_names(),
    .features = {"attention_bias", "layer_types"},
    .dropped = {"mtp.*", "*.mtp.*"},
};

}  // namespace mlxcel
