#include "models/config_reading_moe.h"

#include "core/error.h"

#include <algorithm>

namespace mlxcel {

namespace {

// Divided sums stay away from zero by this much in DeepSeek's router.
constexpr float kLeastSum = 1e-20f;

int first_of(
    const Config& config, std::string_view key, std::string_view other) {
  return config.has(key) ? config.get<int>(key) : config.get<int>(other);
}

}  // namespace

MoeSpec deepseek_moe(const Config& config) {
  MoeSpec moe;
  moe.experts = first_of(config, "n_routed_experts", "num_experts");
  moe.experts_per_token = config.get<int>("num_experts_per_tok");
  moe.expert.intermediate_size = config.get<int>("moe_intermediate_size");
  moe.expert.activation = activation_from_name(config, "hidden_act", "silu");
  moe.routing.shares = config.get_or("norm_topk_prob", false)
                           ? Shares::renormalized
                           : Shares::as_scored;
  moe.routing.least_sum = kLeastSum;
  moe.routing.scale = config.get_or("routed_scaling_factor", 1.f);
  int shared =
      config.get_or("n_shared_experts", config.get_or("num_shared_experts", 0));
  moe.shared = moe.expert;
  moe.shared.intermediate_size *= shared;
  return moe;
}

MoeSpec deepseek3_moe(const Config& config) {
  MoeSpec moe = deepseek_moe(config);
  moe.routing.scores = RouterScores::sigmoid;
  moe.routing.shares = is_set(config, "norm_topk_prob", true)
                           ? Shares::renormalized
                           : Shares::as_scored;
  moe.routing.groups = {
      .count = config.get_or("n_group", 1),
      .kept = config.get_or("topk_group", 1),
      .score = GroupScore::best_two};
  moe.router_bias = RouterBias::selection;
  return moe;
}

void mix_after_dense(
    const Config& config, DecoderSpec& decoder, const MoeSpec& moe) {
  int first = config.get_or("first_k_dense_replace", 0);
  int step = std::max(1, config.get_or("moe_layer_freq", 1));
  for (size_t layer = 0; layer < decoder.blocks.size(); ++layer) {
    if (int(layer) >= first && int(layer) % step == 0) {
      decoder.blocks[layer].moe = moe;
    }
  }
}

void mix_by_type(
    const Config& config, DecoderSpec& decoder, const MoeSpec& moe) {
  auto types = config.find<std::vector<std::string>>("mlp_layer_types");
  if (!types) {
    mix_after_dense(config, decoder, moe);
    return;
  }
  if (types->size() < decoder.blocks.size()) {
    throw ConfigError(
        cat(config.file(), ": mlp_layer_types has ", types->size(), " entries"),
        cat("num_hidden_layers is ", decoder.blocks.size()),
        "name the type of each layer");
  }
  for (size_t layer = 0; layer < decoder.blocks.size(); ++layer) {
    const std::string& type = (*types)[layer];
    if (type == "sparse") {
      decoder.blocks[layer].moe = moe;
    } else if (type != "dense") {
      throw ConfigError(
          cat(config.file(),
              ": mlp_layer_types names \"",
              type,
              "\" for layer ",
              layer),
          "this family has no such layers",
          "known: dense, sparse");
    }
  }
}

DecoderSpec deepseek3_decoder(const Config& config, BlockSpec block) {
  if (config.get_or("use_qk_norm", false)) {
    block.attention.qk_norm = QkNorm::per_head;
  }
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::own);
  mix_after_dense(config, decoder, deepseek3_moe(config));
  return decoder;
}

MoeSpec local_experts_moe(const Config& config, const MlpSpec& mlp) {
  return {
      .experts = config.get<int>("num_local_experts"),
      .experts_per_token = config.get<int>("num_experts_per_tok"),
      .expert =
          {.intermediate_size = mlp.intermediate_size,
           .activation = mlp.activation},
      .routing = {.shares = Shares::renormalized}};
}

std::vector<NameRule> granite_moe_names() {
  const std::string block = "layers.{l}.block_sparse_moe";
  std::vector<NameRule> names = moe_names(block);
  names.insert(
      names.end(),
      {{block + ".router.layer", {"layers.{l}.moe.router"}},
       stack_split_rows(
           block + ".input_linear",
           {"layers.{l}.moe.experts.{e}.gate",
            "layers.{l}.moe.experts.{e}.up"}),
       stack_experts(
           block + ".output_linear", "layers.{l}.moe.experts.{e}.down")});
  return names;
}

void add_shared_expert(const Config& config, MoeSpec& moe) {
  moe.shared = moe.expert;
  moe.shared.intermediate_size =
      config.get<int>("shared_expert_intermediate_size");
  moe.shared_gate = SharedGate::sigmoid;
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

std::vector<NameRule> deepseek_moe_names(
    const std::string& block, const std::string& shared) {
  std::vector<NameRule> names = moe_names(block);
  const std::string stem = cat(block, ".", shared, ".");
  names.insert(
      names.end(),
      {{stem + "gate_proj", {"layers.{l}.moe.shared.gate"}},
       {stem + "up_proj", {"layers.{l}.moe.shared.up"}},
       {stem + "down_proj", {"layers.{l}.moe.shared.down"}},
       {block + ".gate.e_score_correction_bias",
        {"layers.{l}.moe.selection_bias"}},
       {block + ".e_score_correction_bias",
        {"layers.{l}.moe.selection_bias"}}});
  return names;
}

std::vector<NameRule> hunyuan_moe_names() {
  std::vector<NameRule> names =
      deepseek_moe_names("layers.{l}.mlp", "shared_mlp");
  const std::string attention = "layers.{l}.self_attn.";
  names.insert(
      names.end(),
      {{"layers.{l}.mlp.gate.wg", {"layers.{l}.moe.router"}},
       {attention + "query_layernorm", {"layers.{l}.attention.q_norm"}},
       {attention + "key_layernorm", {"layers.{l}.attention.k_norm"}}});
  return names;
}

}  // namespace mlxcel
