// Ling (Bailing MoE) and its second version: one projection for q, k and v,
// shared experts, and the routing of Qwen's mixtures or of DeepSeek 3.
#include "models/config_reading_moe.h"
#include "models/families/families.h"

namespace mlxcel {

namespace {

AttentionBias bailing_bias(bool qkv, bool output) {
  if (qkv) {
    return output ? AttentionBias::all : AttentionBias::qkv;
  }
  return output ? AttentionBias::output : AttentionBias::none;
}

MoeSpec bailing_moe_spec(const Config& config, MlpBias bias) {
  MoeSpec moe = deepseek_moe(config);
  moe.expert.bias = moe.shared.bias = bias;
  if (config.get_or<std::string>("score_function", "softmax") == "sigmoid") {
    moe.routing.scores = RouterScores::sigmoid;
  }
  if (moe.experts_per_token == 1) {
    moe.routing.shares = Shares::as_scored;
  }
  if (int groups = config.get_or("n_group", 1); groups > 1) {
    moe.routing.groups = {
        .count = groups,
        .kept = config.get_or("topk_group", 4),
        .score = GroupScore::best_two};
  }
  if (config.get_or("moe_router_enable_expert_bias", false)) {
    moe.router_bias = RouterBias::selection;
  }
  if (!config.get_or("moe_router_enable_shared_expert", true)) {
    moe.shared.intermediate_size = 0;
  } else if (
      int size = config.get_or("moe_shared_expert_intermediate_size", 0)) {
    moe.shared.intermediate_size = size * config.get<int>("num_shared_experts");
  }
  return moe;
}

DecoderSpec bailing_moe_decoder(const Config& config) {
  bool use_bias = config.get_or("use_bias", false);
  MlpBias bias = use_bias ? MlpBias::all : MlpBias::none;
  double dims = config.get_or("rotary_dim", 0);
  HeadCounts heads = head_counts(config);
  BlockSpec block =
      gated_block(config, {.partial = dims > 0 ? dims / heads.dim : 1});
  block.mlp.bias = bias;
  block.attention.bias =
      bailing_bias(config.get_or("use_qkv_bias", false), use_bias);
  if (config.get_or("use_qk_norm", false)) {
    block.attention.qk_norm = QkNorm::per_head;
  }
  DecoderSpec decoder = uniform_decoder(config, block, HeadKind::own);
  if (config.has("num_experts")) {
    mix_after_dense(config, decoder, bailing_moe_spec(config, bias));
  }
  if (config.get_or("norm_head", false)) {
    decoder.extras.head.rows = HeadRows::columns_normalized;
  }
  return decoder;
}

std::vector<NameRule> bailing_moe_names() {
  const std::string attention = "layers.{l}.attention.";
  std::vector<NameRule> names = deepseek_moe_names();
  names.insert(
      names.end(),
      {{"word_embeddings", {"embedding"}},
       split_rows(
           attention + "query_key_value",
           {"layers.{l}.attention.q",
            "layers.{l}.attention.k",
            "layers.{l}.attention.v"}),
       {attention + "dense", {"layers.{l}.attention.o"}},
       {attention + "query_layernorm", {"layers.{l}.attention.q_norm"}},
       {attention + "key_layernorm", {"layers.{l}.attention.k_norm"}},
       {"layers.{l}.mlp.gate.gate_proj", {"layers.{l}.moe.router"}},
       {"layers.{l}.mlp.gate.expert_bias", {"layers.{l}.moe.selection_bias"}}});
  return names;
}

}  // namespace

const Family bailing_moe = {
    .name = "Ling",
    .type = "BailingMoe",
    .model_types = {"bailing_moe"},
    .architectures = {"BailingMoeForCausalLM", "BailingMoeV2ForCausalLM"},
    .decoder = bailing_moe_decoder,
    .names = hf_decoder_names(bailing_moe_names()),
    .features =
        {"partial_rotary_factor", "use_bias", "use_qk_norm", "num_experts"},
    .dropped = {"*.rotary_emb.inv_freq"},
};

}  // namespace mlxcel
