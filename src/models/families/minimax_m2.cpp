// MiniMax M2: part of each head turned, norms over the whole q and k, experts
// chosen by sigmoid scores and a bias.
#include "models/config_reading_moe.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

DecoderSpec minimax_m2_decoder(const Config& config) {
  HeadCounts heads = head_counts(config);
  double dims = config.get_or("rotary_dim", heads.dim);
  BlockSpec block =
      gated_block(config, {.theta = 5e6, .partial = dims / heads.dim});
  block.attention.qk_norm = QkNorm::projection;  // whatever use_qk_norm says
  block.moe = local_experts_moe(config, block.mlp);
  block.moe->routing.scores = RouterScores::sigmoid;
  block.moe->router_bias = RouterBias::selection;
  return uniform_decoder(config, block, HeadKind::own);
}

std::vector<NameRule> minimax_m2_names() {
  const std::string block = "layers.{l}.block_sparse_moe";
  std::vector<NameRule> names =
      moe_names(block, {.gate = "w1", .up = "w3", .down = "w2"});
  names.push_back(
      {block + ".e_score_correction_bias", {"layers.{l}.moe.selection_bias"}});
  return names;
}

}  // namespace

const Family minimax_m2 = {
    .name = "MiniMax M2",
    .type = "MiniMaxM2",
    .model_types = {"minimax_m2"},
    .architectures = {"MiniMaxM2ForCausalLM"},
    .decoder = minimax_m2_decoder,
    .defaults =
        {{"head_dim", 128}, {"num_local_experts", 256}, {"rms_norm_eps", 1e-6}},
    .names = hf_decoder_names(minimax_m2_names()),
    .features = {"partial_rotary_factor", "use_qk_norm", "num_local_experts"},
    .dropped = {"model.mtp.*", "mtp.*"},
};

}  // namespace mlxcel
