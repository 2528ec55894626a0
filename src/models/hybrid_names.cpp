#include "models/hybrid_names.h"

#include "core/error.h"
#include "models/config_reading_latent.h"
#include "models/config_reading_moe.h"
#include "models/config_reading_recurrent.h"

namespace mlxcel {

namespace {

std::vector<NameRule> kimi_delta_names(const std::string& block) {
  const std::string own = block + ".forget_gate.", delta = "layers.{l}.delta.";
  std::vector<NameRule> rules = {
      {block + ".o_proj", {delta + "out"}},
      {block + ".f_a_proj", {delta + "decay_low"}},
      {block + ".f_b_proj", {delta + "decay"}},
      {block + ".g_a_proj", {delta + "gate_low"}},
      {block + ".g_b_proj", {delta + "gate"}},
      {block + ".b_proj", {delta + "b"}},
      {block + ".o_norm", {delta + "norm"}},
      {own + "f_a_proj", {delta + "decay_low"}},
      {own + "f_b_proj", {delta + "decay"}},
      {own + "A_log", {delta + "a_log"}},
      {own + "dt_bias", {delta + "dt_bias"}},
      split_rows(
          block + ".conv1d",
          {delta + "conv_q", delta + "conv_k", delta + "conv_v"}),
  };
  for (const char* part : {"q", "k", "v"}) {
    const std::string stem = cat(block, ".", part);
    rules.push_back({stem + "_proj", {delta + part}});
    rules.push_back({stem + "_conv.conv", {cat(delta, "conv_", part)}});
  }
  return rules;
}

}  // namespace

std::vector<PublishedStack> stacked_expert_names(const std::string& block) {
  const std::string part = block + "switch_mlp.";
  return {
      {.stem = block + "experts.gate_up_proj",
       .parts = {part + "gate_proj", part + "up_proj"},
       .input_first = false},
      {.stem = block + "experts.down_proj",
       .parts = {part + "down_proj"},
       .input_first = false}};
}

FamilyNames kimi_linear_names() {
  const std::string layer = "layers.{l}.", block = layer + "self_attn";
  const std::string moe = layer + "block_sparse_moe", mlp = layer + "mlp.";
  std::vector<NameRule> rules = {
      {block + ".q_proj", {"layers.{l}.attention.q"}},
      {block + ".o_proj", {"layers.{l}.attention.o"}}};
  for (const std::string& dense : {mlp, moe + "."}) {
    for (const char* part : {"gate", "up", "down"}) {
      rules.push_back({cat(dense, part, "_proj"), {mlp + part}});
    }
  }
  FamilyNames names = hf_decoder_names(join(
      {rules,
       kimi_delta_names(block),
       gated_delta_names(block),
       latent_names(block),
       moe_names(moe, {.gate = "w1", .up = "w3", .down = "w2"}),
       deepseek_moe_names(moe),
       deepseek_moe_names()}));
  names.stacks = stacked_expert_names(mlp);
  return names;
}

FamilyNames nemotron_h_names() {
  const std::string block = "layers.{l}.mixer";
  auto attention = [&](const char* part) {
    return NameRule{
        cat(block, ".", part, "_proj"), {cat("layers.{l}.attention.", part)}};
  };
  FamilyNames names;
  names.rules = join(
      {{{"embeddings", {"embedding"}},
        {"layers.{l}.norm", {"layers.{l}.attention_norm"}},
        {"layers.{l}.norm", {"layers.{l}.mlp_norm"}},
        attention("q"),
        attention("k"),
        attention("v"),
        attention("o"),
        {block + ".up_proj", {"layers.{l}.mlp.up"}},
        {block + ".down_proj", {"layers.{l}.mlp.down"}},
        {block + ".fc1_latent_proj", {"layers.{l}.moe.latent_in"}},
        {block + ".fc2_latent_proj", {"layers.{l}.moe.latent_out"}},
        {"norm_f", {"final_norm"}},
        {"lm_head", {"head"}}},
       state_space_names(block),
       deepseek_moe_names(block),
       {stack_experts(
            block + ".switch_mlp.fc1", "layers.{l}.moe.experts.{e}.up"),
        stack_experts(
            block + ".switch_mlp.fc2", "layers.{l}.moe.experts.{e}.down")}});
  names.spellings = {{"backbone.", ""}, {"model.", ""}, {"", ""}};
  return names;
}

}  // namespace mlxcel
