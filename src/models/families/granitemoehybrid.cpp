// Granite MoE hybrid (Granite 4): Mamba 2 and attention layers under Granite's
// multipliers, each with an MLP for every row, beside a mixture or alone.
#include "models/config_reading_moe.h"
#include "models/config_reading_recurrent.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

// The mixer's sizes as the published class completes them.
Config with_mixer_sizes(const Config& config) {
  nlohmann::json json = config.json();
  auto fill = [&](const char* key, const nlohmann::json& value) {
    if (!config.has(key) || json.at(key) == "auto") {
      json[key] = value;
    }
  };
  fill("mamba_n_heads", 128);
  fill("mamba_n_groups", 1);
  fill("mamba_d_state", 256);
  fill("mamba_d_conv", 4);
  int64_t inner = config.get_or<int64_t>("mamba_expand", 2) *
                  config.get<int64_t>("hidden_size");
  int64_t heads = json.at("mamba_n_heads").is_number_integer()
                      ? json.at("mamba_n_heads").get<int64_t>()
                      : 0;
  fill("mamba_d_head", heads > 0 ? inner / heads : 0);
  Config out(std::move(json), config.file());
  out.set_layout(config.layout());
  return out;
}

DecoderSpec granitemoehybrid_decoder(const Config& given) {
  Config config = with_mixer_sizes(given);
  require_silu(config, "hidden_act");
  BlockSpec block = granite_block(config);
  if (config.get_or<std::string>("position_embedding_type", "") != "rope") {
    block.attention.rope = nullptr;
  }
  int shared = config.get_or("shared_intermediate_size", 1024);
  if (config.get_or("num_local_experts", 8) > 0) {
    block.moe = local_experts_moe(config, block.mlp);
    block.moe->shared = block.mlp;
    block.moe->shared.intermediate_size = shared;
  } else {
    block.mlp.intermediate_size = shared;
  }
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::own);
  scale_as_granite(config, decoder);

  auto mixer = state_space_mixer(config, {}, block.norm.eps);
  bool bias = config.get_or("mamba_proj_bias", false);
  mixer->bias = {bias, bias};
  size_t layers = decoder.blocks.size();
  auto kinds = layer_kinds(
      config,
      layers,
      {"mamba", "linear_attention", "attention", "full_attention"},
      std::vector<std::string>(layers, "linear_attention"));
  for (size_t layer = 0; layer < layers; ++layer) {
    if (kinds[layer] == "mamba" || kinds[layer] == "linear_attention") {
      decoder.blocks[layer].mixer = mixer;
    }
  }
  return decoder;
}

std::vector<NameRule> granitemoehybrid_names() {
  const std::string shared = "layers.{l}.shared_mlp";
  auto gate_up = [](const char* part) {
    return std::vector<std::string>{
        cat("layers.{l}.", part, ".gate"), cat("layers.{l}.", part, ".up")};
  };
  return join(
      {granite_moe_names(),
       state_space_names("layers.{l}.mamba"),
       {split_rows(shared + ".input_linear", gate_up("moe.shared")),
        {shared + ".output_linear", {"layers.{l}.moe.shared.down"}},
        split_rows(shared + ".input_linear", gate_up("mlp")),
        {shared + ".output_linear", {"layers.{l}.mlp.down"}},
        {"layers.{l}.mlp.gate_proj", {"layers.{l}.mlp.gate"}},
        {"layers.{l}.mlp.up_proj", {"layers.{l}.mlp.up"}},
        {"layers.{l}.mlp.down_proj", {"layers.{l}.mlp.down"}}}});
}

}  // namespace

const Family granitemoehybrid = {
    .name = "Granite MoE Hybrid",
    .type = "GraniteMoeHybrid",
    .model_types = {"granitemoehybrid"},
    .architectures = {"GraniteMoeHybridForCausalLM"},
    .decoder = granitemoehybrid_decoder,
    .defaults =
        {{"num_experts_per_tok", 2},
         {"num_local_experts", 8},
         {"rms_norm_eps", 1e-6}},
    .names = hf_decoder_names(granitemoehybrid_names()),
    .features = granite_features(
        {"num_local_experts", "position_embedding_type", "layer_types"}),
};

}  // namespace mlxcel
