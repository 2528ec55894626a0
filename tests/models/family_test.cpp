// Specs that configs lead to, and configs that are refused.
#include "models/family.h"

#include "core/error.h"
#include "support/models/config_specs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace mlxcel {
namespace {

using nlohmann::json;
using testing::refusal;
using testing::spec_of;

json base_config() {
  return {
      {"hidden_size", 32},
      {"num_hidden_layers", 4},
      {"num_attention_heads", 4},
      {"num_key_value_heads", 2},
      {"intermediate_size", 40},
      {"vocab_size", 100},
      {"rms_norm_eps", 1e-3},
      {"hidden_act", "silu"},
      {"max_position_embeddings", 64}};
}

json with(json extra) {
  json config = base_config();
  config.update(extra);
  return config;
}

std::vector<int64_t> windows(const DecoderSpec& spec) {
  std::vector<int64_t> out;
  for (const BlockSpec& block : spec.blocks) {
    out.push_back(block.attention.window.size);
  }
  return out;
}

TEST(Family, LlamaReadsItsConfig) {
  DecoderSpec spec = spec_of("llama", base_config());
  ASSERT_EQ(spec.blocks.size(), 4u);
  const AttentionSpec& attention = spec.blocks[0].attention;
  EXPECT_EQ(attention.heads.query, 4);
  EXPECT_EQ(attention.heads.key_value, 2);
  EXPECT_EQ(attention.heads.dim, 8);
  EXPECT_FLOAT_EQ(attention.scale, 0.35355339f);
  EXPECT_FLOAT_EQ(spec.final_norm.eps, 1e-3f);
  EXPECT_EQ(spec.head, HeadKind::own);
  EXPECT_EQ(attention.bias, AttentionBias::none);
  EXPECT_EQ(
      spec_of("llama", with({{"num_key_value_heads", nullptr}}))
          .blocks[0]
          .attention.heads.key_value,
      4);
}

TEST(Family, HeadsAreTiedAsTheConfigSays) {
  EXPECT_EQ(
      spec_of("llama", with({{"tie_word_embeddings", true}})).head,
      HeadKind::tied);
  EXPECT_EQ(spec_of("qwen3", base_config()).head, HeadKind::tied);
  EXPECT_EQ(
      spec_of("qwen3", with({{"tie_word_embeddings", false}})).head,
      HeadKind::own);
  EXPECT_EQ(spec_of("gemma", base_config()).head, HeadKind::tied);
  EXPECT_EQ(spec_of("qwen2", base_config()).head, HeadKind::own);
}

TEST(Family, WindowsFollowTheFamilysRule) {
  using ::testing::ElementsAre;
  EXPECT_THAT(
      windows(spec_of("mistral", with({{"sliding_window", 8}}))),
      ElementsAre(8, 8, 8, 8));
  json upper = with({{"sliding_window", 8}, {"max_window_layers", 3}});
  EXPECT_THAT(windows(spec_of("qwen2", upper)), ElementsAre(0, 0, 0, 0));
  upper["use_sliding_window"] = true;
  EXPECT_THAT(windows(spec_of("qwen2", upper)), ElementsAre(0, 0, 0, 8));
  upper["layer_types"] = {
      "sliding_attention",
      "full_attention",
      "full_attention",
      "full_attention"};
  EXPECT_THAT(windows(spec_of("qwen3", upper)), ElementsAre(8, 0, 0, 0));
  json gemma2 = with(
      {{"sliding_window", 8},
       {"query_pre_attn_scalar", 16},
       {"hidden_activation", "gelu_pytorch_tanh"}});
  EXPECT_THAT(windows(spec_of("gemma2", gemma2)), ElementsAre(8, 0, 8, 0));
  EXPECT_THAT(
      windows(spec_of(
          "smollm3",
          with({{"use_sliding_window", true}, {"sliding_window", 8}}))),
      ElementsAre(0, 0, 0, 8));
}

TEST(Family, NullSwitchesASoftCapOff) {
  json config = with(
      {{"sliding_window", 8},
       {"query_pre_attn_scalar", 16},
       {"hidden_activation", "gelu_pytorch_tanh"}});
  EXPECT_EQ(spec_of("gemma2", config).logit_softcap, 30);
  EXPECT_EQ(spec_of("gemma2", config).blocks[0].attention.softcap, 50);
  config["final_logit_softcapping"] = nullptr;
  config["attn_logit_softcapping"] = nullptr;
  EXPECT_EQ(spec_of("gemma2", config).logit_softcap, 0);
  EXPECT_EQ(spec_of("gemma2", config).blocks[0].attention.softcap, 0);
}

// transformers divides by what is not null, and gives no numbers for 0.
TEST(Family, RefusesSoftCapsThatGiveNoNumbers) {
  json gemma2 = with(
      {{"sliding_window", 8},
       {"query_pre_attn_scalar", 16},
       {"hidden_activation", "gelu_pytorch_tanh"}});
  json griffin = with({{"attention_window_size", 8}});
  struct Case {
    const char* model_type;
    json config;
    const char* key;
  };
  for (const Case& c : std::vector<Case>{
           {"gemma2", gemma2, "final_logit_softcapping"},
           {"gemma2", gemma2, "attn_logit_softcapping"},
           {"nanochat", base_config(), "final_logit_softcapping"},
           {"recurrent_gemma", griffin, "logits_soft_cap"}}) {
    for (double cap : {0.0, -2.0}) {
      json wrong = c.config;
      wrong[c.key] = cap;
      EXPECT_THAT(
          refusal(c.model_type, wrong),
          ::testing::HasSubstr(cat(c.key, " is ", cap)));
    }
  }
  griffin["logits_soft_cap"] = nullptr;
  EXPECT_EQ(spec_of("recurrent_gemma", griffin).logit_softcap, 0);
}

TEST(Family, SmolLm3LeavesOutRotations) {
  DecoderSpec spec =
      spec_of("smollm3", with({{"no_rope_layers", {1, 0, 1, 1}}}));
  EXPECT_NE(spec.blocks[0].attention.rope, nullptr);
  EXPECT_EQ(spec.blocks[1].attention.rope, nullptr);
  EXPECT_EQ(
      spec_of("smollm3", base_config()).blocks[3].attention.rope, nullptr);
}

TEST(Family, RefusesSwitchesThatItDoesNotRead) {
  EXPECT_EQ(
      refusal("llama", with({{"sliding_window", 8}})),
      "config.json: \"sliding_window\" is not supported for Llama: its value 8 "
      "would change the result, and this family does not read it\n  check "
      "model_type, or take config.json from the original publisher");
  for (const json& extra : std::vector<json>{
           {{"clip_qkv", 8.0}},
           {{"embedding_multiplier", 12.0}},
           {{"logits_scaling", 8.0}},
           {{"num_local_experts", 8}},
           {{"alibi", true}},
           {{"final_logit_softcapping", 30.0}},
           {{"no_rope_layers", {1, 0, 1, 1}}},
           {{"layer_types", {"chunked_attention"}}}}) {
    EXPECT_THAT(
        refusal("llama", with(extra)),
        ::testing::HasSubstr(
            "\"" + extra.begin().key() + "\" is not supported for Llama"));
  }
  EXPECT_EQ(
      refusal(
          "llama",
          with(
              {{"logits_scaling", 1.0},
               {"num_local_experts", 0},
               {"sliding_window", nullptr},
               {"position_embedding_type", "rope"}})),
      "accepted");
}

TEST(Family, RefusesWhatGivesNoModel) {
  EXPECT_EQ(
      refusal("llama", with({{"hidden_act", "swishy"}})),
      "config.json: hidden_act \"swishy\" is not known: the MLPs cannot be "
      "computed without their activation\n  known: silu, swish, gelu, "
      "gelu_python, gelu_pytorch_tanh, gelu_new, gelu_fast, "
      "gelu_python_tanh, gelu_accurate, relu, relu2, tanh, sigmoid, linear");
  EXPECT_THAT(
      refusal("llama", with({{"num_key_value_heads", 3}})),
      ::testing::HasSubstr("no multiple of num_key_value_heads"));
  EXPECT_THAT(
      refusal("llama", with({{"num_hidden_layers", 0}})),
      ::testing::HasSubstr("num_hidden_layers is 0"));
  EXPECT_THAT(
      refusal("llama", with({{"hidden_size", -32}})),
      ::testing::HasSubstr("hidden_size is -32"));
  EXPECT_THAT(
      refusal("llama", with({{"hidden_size", 30}})),
      ::testing::HasSubstr("state head_dim"));
  EXPECT_THAT(
      refusal("llama", with({{"rms_norm_eps", -1.0}})),
      ::testing::HasSubstr("the norm eps is -1"));
  EXPECT_THAT(
      refusal(
          "qwen2",
          with(
              {{"layer_types", {"sliding_attention"}},
               {"sliding_window", 8},
               {"use_sliding_window", true}})),
      ::testing::HasSubstr("layer_types has 1 entries"));
  EXPECT_THAT(
      refusal("mistral", with({{"sliding_window", 0}})),
      ::testing::HasSubstr("sliding_window is 0"));
}

TEST(Family, RefusesMoreLayersThanAnyModelHas) {
  EXPECT_EQ(
      refusal("llama", with({{"num_hidden_layers", 10001}})),
      "config.json: num_hidden_layers is 10001: more than 10000 are taken for "
      "damage\n  take config.json from the model's original publisher");
}

json mixture(json extra = json::object()) {
  json config = with(
      {{"num_experts", 6},
       {"num_local_experts", 5},
       {"num_experts_per_tok", 2},
       {"moe_intermediate_size", 24},
       {"shared_expert_intermediate_size", 48}});
  config.update(extra);
  return config;
}

TEST(Family, MixturesStandWhereTheConfigPutsThem) {
  json config = mixture({{"num_local_experts", nullptr}});
  config.update(
      {{"decoder_sparse_step", 2},
       {"mlp_only_layers", {1}},
       {"norm_topk_prob", true}});
  DecoderSpec spec = spec_of("qwen3_moe", config);
  for (size_t layer = 0; layer < 4; ++layer) {
    EXPECT_EQ(spec.blocks[layer].moe.has_value(), layer == 3) << layer;
  }
  const MoeSpec& moe = *spec.blocks[3].moe;
  EXPECT_EQ(moe.experts, 6);
  EXPECT_EQ(moe.experts_per_token, 2);
  EXPECT_EQ(moe.expert.intermediate_size, 24);
  EXPECT_EQ(moe.routing.shares, Shares::renormalized);
  EXPECT_EQ(moe.shared.intermediate_size, 0);
  EXPECT_EQ(spec.head, HeadKind::own);

  config = mixture({{"num_local_experts", nullptr}});
  EXPECT_EQ(
      spec_of("qwen3_moe", config).blocks[0].moe->routing.shares,
      Shares::as_scored);
  spec = spec_of("qwen2_moe", config);
  EXPECT_EQ(spec.blocks[0].moe->shared.intermediate_size, 48);
  EXPECT_EQ(
      spec_of("olmoe", config).blocks[0].moe->expert.intermediate_size, 40);
  spec = spec_of("mixtral", mixture({{"num_experts", nullptr}}));
  EXPECT_EQ(spec.blocks[3].moe->experts, 5);
  EXPECT_EQ(spec.blocks[3].moe->routing.shares, Shares::renormalized);
}

TEST(Family, WindowsOfQwen2MoeAlternateBelowALayer) {
  json config = mixture(
      {{"num_local_experts", nullptr},
       {"use_sliding_window", true},
       {"sliding_window", 8},
       {"max_window_layers", 3}});
  EXPECT_EQ(
      windows(spec_of("qwen2_moe", config)),
      (std::vector<int64_t>{8, 0, 8, 0}));
  config["max_window_layers"] = 2;
  EXPECT_EQ(
      windows(spec_of("qwen2_moe", config)),
      (std::vector<int64_t>{8, 0, 0, 0}));
  config.erase("max_window_layers");
  EXPECT_EQ(
      windows(spec_of("qwen3_moe", config)),
      (std::vector<int64_t>{8, 8, 8, 8}));
}

TEST(Family, RefusesMixturesThatCannotBe) {
  json config = mixture({{"num_local_experts", nullptr}});
  config["num_experts_per_tok"] = 7;
  EXPECT_THAT(
      refusal("olmoe", config),
      ::testing::HasSubstr("num_experts_per_tok, of 6 experts, is 7"));
  config["num_experts_per_tok"] = 2;
  config["decoder_sparse_step"] = 0;
  EXPECT_THAT(
      refusal("qwen3_moe", config),
      ::testing::HasSubstr("decoder_sparse_step is 0"));
  config["num_experts"] = 20000;
  EXPECT_THAT(
      refusal("olmoe", config),
      ::testing::HasSubstr("the number of experts in all layers is 80000"));
  config["num_experts"] = 0;
  EXPECT_THAT(
      refusal("olmoe", config),
      ::testing::HasSubstr("the number of experts is 0"));
  EXPECT_THAT(
      refusal("qwen3", mixture()), ::testing::HasSubstr("\"num_experts\""));
}

json latent(json extra = json::object()) {
  json config = with(
      {{"kv_lora_rank", 16},
       {"q_lora_rank", nullptr},
       {"qk_nope_head_dim", 12},
       {"qk_rope_head_dim", 8},
       {"v_head_dim", 20},
       {"n_routed_experts", 4},
       {"moe_intermediate_size", 24},
       {"num_experts_per_tok", 2},
       {"n_group", 1},
       {"topk_group", 1}});
  config.update(extra);
  return config;
}

TEST(Family, LatentAttentionRefusesWhatItDoesNotCompute) {
  using ::testing::HasSubstr;
  EXPECT_EQ(refusal("deepseek_v3", latent()), "accepted");
  EXPECT_EQ(refusal("deepseek_v2", latent()), "accepted");
  EXPECT_THAT(
      refusal("deepseek_v2", latent({{"topk_method", "noaux_tc"}})),
      HasSubstr("topk_method \"noaux_tc\" is not supported"));
  EXPECT_THAT(
      refusal("deepseek_v3", latent({{"scoring_func", "softmax"}})),
      HasSubstr("scoring_func \"softmax\" is not supported"));
  EXPECT_THAT(
      refusal("deepseek_v3", latent({{"qk_nope_head_dim", 0}})),
      HasSubstr("qk_nope_head_dim is 0"));
  EXPECT_THAT(
      refusal("deepseek_v3", latent({{"num_attention_heads", 1 << 16}})),
      HasSubstr("heads in all are taken for damage"));
  EXPECT_THAT(
      refusal("llama", latent({{"n_routed_experts", 0}})),
      HasSubstr("\"kv_lora_rank\""));
  EXPECT_THAT(
      refusal("glm4_moe_lite", latent({{"mlp_layer_types", {"dense"}}})),
      HasSubstr("mlp_layer_types has 1 entries"));
}

// Three layers whose last one has attention inside a part.
json gated_attention(json extra = json::object()) {
  json config = with(
      {{"num_hidden_layers", 3},
       {"head_dim", 24},
       {"partial_rotary_factor", 0.5},
       {"layer_types",
        {"linear_attention", "linear_attention", "full_attention"}},
       {"linear_num_value_heads", 4},
       {"linear_num_key_heads", 2},
       {"linear_key_head_dim", 8},
       {"linear_value_head_dim", 12},
       {"linear_conv_kernel_dim", 4},
       {"num_experts", 4},
       {"num_experts_per_tok", 2},
       {"moe_intermediate_size", 24},
       {"shared_expert_intermediate_size", 32},
       {"decoder_sparse_step", 1},
       {"norm_topk_prob", true}});
  config.update(extra);
  return config;
}

json minimax(json extra = json::object()) {
  json config = with(
      {{"num_hidden_layers", 2},
       {"layer_types", {"linear_attention", "full_attention"}},
       {"num_local_experts", 4},
       {"num_experts_per_tok", 2}});
  config.update(extra);
  return config;
}

std::vector<bool> rotations(const DecoderSpec& spec) {
  std::vector<bool> out;
  for (const BlockSpec& block : spec.blocks) {
    out.push_back(has_rotation(block));
  }
  return out;
}

TEST(Family, AttentionInsidePartsIsChecked) {
  using ::testing::HasSubstr;
  EXPECT_EQ(refusal("qwen3_next", gated_attention()), "accepted");
  EXPECT_EQ(refusal("minimax", minimax()), "accepted");
  EXPECT_THAT(
      refusal("qwen3_next", gated_attention({{"num_key_value_heads", 3}})),
      HasSubstr("no multiple of num_key_value_heads"));
  EXPECT_THAT(
      refusal("minimax", minimax({{"num_key_value_heads", 3}})),
      HasSubstr("no multiple of num_key_value_heads"));
}

TEST(Family, ExpertsInsidePartsAreCounted) {
  EXPECT_THAT(
      refusal("minimax", minimax({{"num_local_experts", 40000}})),
      ::testing::HasSubstr("the number of experts in all layers is 80000"));
}

// mlx-lm's gpt_oss turns plainly under null; transformers' class stretches the
// rotation where the key is missing: the scale of cosines, 0.1 ln 32 + 1,
// tells.
TEST(Family, GptOssStretchesItsRotationUnlessToldOtherwise) {
  json config = with(
      {{"num_local_experts", 4},
       {"num_experts_per_tok", 2},
       {"rope_theta", 150000.0}});
  auto scale = [&] {
    return spec_of("gpt_oss", config).blocks[0].attention.rope->scale;
  };
  EXPECT_NEAR(scale(), 0.1 * std::log(32.0) + 1, 1e-6);
  config["rope_scaling"] = nullptr;
  EXPECT_EQ(scale(), 1);
}

TEST(Family, RotationsInsidePartsAreSeen) {
  EXPECT_EQ(
      rotations(spec_of("qwen3_next", gated_attention())),
      (std::vector<bool>{false, false, true}));
  EXPECT_EQ(
      rotations(spec_of("minimax", minimax())),
      (std::vector<bool>{false, true}));
  EXPECT_EQ(
      rotations(spec_of("deepseek_v3", latent())),
      (std::vector<bool>(4, true)));
}

TEST(Family, DroppedPatternsCoverWholeKeys) {
  const Family& family = *find_by_model_type("llama");
  EXPECT_TRUE(
      is_dropped(family, "model.layers.0.self_attn.rotary_emb.inv_freq", 2));
  EXPECT_FALSE(
      is_dropped(family, "model.layers.0.self_attn.rotary_emb.inv_freq.x", 2));
  EXPECT_FALSE(is_dropped(family, "model.norm.weight", 2));
}

TEST(Family, LayersPastTheLastAreDroppedWhereTheyPredictFurtherTokens) {
  const Family& family = *find_by_model_type("deepseek_v3");
  EXPECT_TRUE(is_dropped(family, "model.layers.2.eh_proj.weight", 2));
  EXPECT_TRUE(is_dropped(family, "model.layers.10.self_attn.o_proj.weight", 2));
  EXPECT_FALSE(is_dropped(family, "model.layers.1.eh_proj.weight", 2));
  EXPECT_FALSE(is_dropped(family, "model.layers.x.weight", 2));
  EXPECT_FALSE(is_dropped(
      *find_by_model_type("llama"), "model.layers.2.mlp.up_proj.weight", 2));
}

}  // namespace
}  // namespace mlxcel
