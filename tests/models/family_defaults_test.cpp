// What families take for keys that a config leaves out, writes as null or
// spells twice. The expected values are those of the config classes of
// transformers 5.24 (models/<name>/configuration_<name>.py).
#include "core/error.h"
#include "models/family.h"
#include "models/gated_delta.h"
#include "models/state_space.h"
#include "support/models/config_specs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <cmath>

namespace mlxcel {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using testing::refusal;
using testing::spec_of;

json with(const json& extra) {
  json config = {
      {"hidden_size", 32},
      {"num_hidden_layers", 4},
      {"num_attention_heads", 4},
      {"num_key_value_heads", 2},
      {"head_dim", 8},
      {"intermediate_size", 40},
      {"vocab_size", 100},
      {"rms_norm_eps", 1e-3},
      {"hidden_act", "silu"},
      {"max_position_embeddings", 64}};
  config.update(extra);
  return config;
}

// theta of an unscaled table: its second frequency is theta^(-2 / dims).
double theta_of(const DecoderSpec& spec) {
  const RopeTable& table = *spec.blocks.front().attention.rope;
  return std::pow(double(table.inv_freq[1]), -table.dims / 2.0);
}

const json kExperts = {
    {"num_experts_per_tok", 2},
    {"num_local_experts", 4},
    {"num_experts", 4},
    {"n_routed_experts", 4},
    {"n_shared_experts", 1},
    {"num_shared_experts", 1},
    {"moe_intermediate_size", 16}};

// An expert key of one spelling is a switch that other families refuse.
json experts(std::initializer_list<const char*> keys, const json& extra = {}) {
  json out = json::object();
  for (const char* key : keys) {
    out[key] = kExperts.at(key);
  }
  if (!extra.is_null()) {
    out.update(extra);
  }
  return with(out);
}

// default_theta of the classes.
TEST(FamilyDefaults, BaseOfTheRotation) {
  EXPECT_NEAR(theta_of(spec_of("llama", with(json::object()))), 10000, 1);
  EXPECT_NEAR(theta_of(spec_of("cohere", with(json::object()))), 500000, 50);
  EXPECT_NEAR(theta_of(spec_of("exaone", with(json::object()))), 500000, 50);
  EXPECT_NEAR(
      theta_of(spec_of(
          "minimax_m2", experts({"num_local_experts", "num_experts_per_tok"}))),
      5e6,
      500);
  EXPECT_NEAR(
      theta_of(spec_of(
          "solar_open",
          experts(
              {"n_routed_experts",
               "n_shared_experts",
               "num_experts_per_tok",
               "moe_intermediate_size"}))),
      1e6,
      100);
  EXPECT_NEAR(theta_of(spec_of("qwen2_vl", with(json::object()))), 1e6, 100);
  EXPECT_NEAR(theta_of(spec_of("qwen2_5_vl", with(json::object()))), 1e6, 100);
  EXPECT_NEAR(theta_of(spec_of("qwen3_vl", with(json::object()))), 500000, 50);
  // Cohere2Config has no base of its own.
  DecoderSpec cohere2 = spec_of("cohere2", with({{"sliding_window", 8}}));
  EXPECT_NEAR(theta_of(cohere2), 10000, 1);
}

// ApertusConfig fills in a whole llama3 section, whose base hides rope_theta.
TEST(FamilyDefaults, ApertusScalesUnlessTheConfigSaysHow) {
  json stated = {
      {"rope_parameters",
       {{"rope_type", "llama3"},
        {"rope_theta", 12000000.0},
        {"factor", 8.0},
        {"original_max_position_embeddings", 8192},
        {"low_freq_factor", 1.0},
        {"high_freq_factor", 4.0}}}};
  auto expected = spec_of("apertus", with(stated)).blocks[0].attention.rope;
  for (const json& left_out :
       {json::object(),
        json{{"rope_theta", 77.0}},
        json{{"rope_scaling", nullptr}, {"rope_theta", 77.0}}}) {
    auto rope = spec_of("apertus", with(left_out)).blocks[0].attention.rope;
    EXPECT_EQ(rope->inv_freq, expected->inv_freq) << left_out;
  }
}

// Exaone4Config and ExaoneMoeConfig: window 4096, every fourth layer sees
// everything and does not turn. MistralConfig: window 4096 in all layers.
TEST(FamilyDefaults, WindowsOfFamiliesThatSlide) {
  DecoderSpec exaone4 = spec_of("exaone4", with(json::object()));
  EXPECT_EQ(exaone4.blocks[0].attention.window.size, 4096);
  EXPECT_NE(exaone4.blocks[0].attention.rope, nullptr);
  EXPECT_EQ(exaone4.blocks[3].attention.window.size, 0);
  EXPECT_EQ(exaone4.blocks[3].attention.rope, nullptr);

  EXPECT_EQ(
      spec_of("mistral", with(json::object())).blocks[3].attention.window.size,
      4096);
  // Qwen2Config: 4096 from layer 28 on, once use_sliding_window is set.
  DecoderSpec qwen2 = spec_of(
      "qwen2", with({{"use_sliding_window", true}, {"max_window_layers", 2}}));
  EXPECT_EQ(qwen2.blocks[1].attention.window.size, 0);
  EXPECT_EQ(qwen2.blocks[2].attention.window.size, 4096);
  EXPECT_EQ(
      spec_of("mistral", with({{"sliding_window", nullptr}}))
          .blocks[3]
          .attention.window.size,
      0);
}

// routed_scaling_factor 2.5 and norm_topk_prob of ExaoneMoeConfig;
// Dots1Config's norm_topk_prob is false.
TEST(FamilyDefaults, RoutingOfMixtures) {
  const std::initializer_list<const char*> exaone = {
      "num_experts",
      "num_shared_experts",
      "num_experts_per_tok",
      "moe_intermediate_size"};
  DecoderSpec spec = spec_of("exaone_moe", experts(exaone));
  EXPECT_FALSE(spec.blocks[0].moe);  // first_k_dense_replace is 1
  ASSERT_TRUE(spec.blocks[1].moe);
  EXPECT_EQ(spec.blocks[1].moe->routing.scale, 2.5f);
  EXPECT_EQ(spec.blocks[1].moe->routing.shares, Shares::renormalized);

  const std::initializer_list<const char*> deepseek = {
      "n_routed_experts",
      "n_shared_experts",
      "num_experts_per_tok",
      "moe_intermediate_size"};
  auto shares = [&](const json& extra) {
    return spec_of("dots1", experts(deepseek, extra))
        .blocks[0]
        .moe->routing.shares;
  };
  EXPECT_EQ(shares(json::object()), Shares::as_scored);
  EXPECT_EQ(shares({{"norm_topk_prob", nullptr}}), Shares::as_scored);
  EXPECT_EQ(shares({{"norm_topk_prob", true}}), Shares::renormalized);
}

json olmo_hybrid(const json& extra) {
  json config = with(
      {{"linear_num_key_heads", 2},
       {"linear_num_value_heads", 4},
       {"linear_key_head_dim", 6},
       {"linear_value_head_dim", 10},
       {"layer_types",
        {"linear_attention",
         "linear_attention",
         "linear_attention",
         "full_attention"}}});
  config.update(extra);
  return config;
}

// OlmoHybridModel rotates unless the base is null; OlmoHybridConfig's default
// is 10000.
TEST(FamilyDefaults, OlmoHybridTurnsUnlessItsBaseIsNull) {
  auto turns = [](const json& extra) {
    return spec_of("olmo_hybrid", olmo_hybrid(extra))
               .blocks[3]
               .attention.rope != nullptr;
  };
  EXPECT_TRUE(turns(json::object()));
  EXPECT_TRUE(turns({{"rope_parameters", nullptr}}));
  EXPECT_TRUE(turns({{"rope_parameters", {{"rope_type", "default"}}}}));
  EXPECT_FALSE(turns({{"rope_parameters", {{"rope_theta", nullptr}}}}));
  EXPECT_FALSE(turns({{"rope_theta", nullptr}}));
}

TEST(FamilyDefaults, RefusesSizesOfDeltaLayersByName) {
  for (const char* key :
       {"linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_conv_kernel_dim"}) {
    for (int value : {0, -1}) {
      EXPECT_THAT(
          refusal("olmo_hybrid", olmo_hybrid({{key, value}})), HasSubstr(key));
    }
  }
  EXPECT_THAT(
      refusal("olmo_hybrid", olmo_hybrid({{"linear_num_value_heads", 3}})),
      HasSubstr("no multiple of linear_num_key_heads 2"));
}

// Only classes whose rotation reads the share take another one than 1.
TEST(FamilyDefaults, RefusesAShareOfTheRotationThatItDoesNotRead) {
  const json share = {{"partial_rotary_factor", 0.5}};
  const json inside = {
      {"rope_parameters",
       {{"rope_type", "default"},
        {"rope_theta", 555.0},
        {"partial_rotary_factor", 0.5}}}};
  for (const char* family : {"llama", "qwen3", "mistral", "olmo2", "cohere"}) {
    for (const json& extra : {share, inside}) {
      EXPECT_THAT(
          refusal(family, with(extra)), HasSubstr("partial_rotary_factor"))
          << family << extra;
    }
    EXPECT_EQ(
        refusal(family, with({{"partial_rotary_factor", 1.0}})), "accepted");
  }
  for (const json& extra : {share, inside}) {
    for (const char* family : {"phi3", "stablelm", "nemotron", "glm"}) {
      EXPECT_EQ(spec_of(family, with(extra)).blocks[0].attention.rope->dims, 4);
    }
  }
}

// GlmConfig: 0.5 where the key is missing; a null leaves whole heads.
TEST(FamilyDefaults, ANullShareTurnsWholeHeads) {
  auto dims = [](const char* family, const json& extra) {
    return spec_of(family, with(extra)).blocks[0].attention.rope->dims;
  };
  EXPECT_EQ(dims("glm", json::object()), 4);
  EXPECT_EQ(dims("glm", {{"partial_rotary_factor", nullptr}}), 8);
  EXPECT_EQ(dims("glm4", {{"partial_rotary_factor", nullptr}}), 8);
}

TEST(FamilyDefaults, RefusesBasesThatTheClassDoesNotRead) {
  json gptj = {
      {"n_embd", 32},
      {"n_head", 4},
      {"n_layer", 2},
      {"n_positions", 64},
      {"rotary_dim", 4},
      {"vocab_size", 100}};
  EXPECT_EQ(spec_of("gptj", gptj).blocks[0].attention.rope->dims, 4);
  for (const json& extra :
       {json{{"rope_theta", 333.0}},
        json{{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}},
        json{{"rope_parameters", {{"rope_theta", 555.0}}}}}) {
    json config = gptj;
    config.update(extra);
    EXPECT_THAT(refusal("gptj", config), HasSubstr("not supported for GPT-J"));
  }
  EXPECT_THAT(
      refusal("gpt_neox", with({{"rope_theta", 333.0}})),
      HasSubstr("rotary_emb_base"));
  EXPECT_NEAR(
      theta_of(spec_of(
          "gpt_neox", with({{"rotary_emb_base", 500}, {"rotary_pct", 1.0}}))),
      500,
      0.1);
}

// ExaoneConfig.attribute_map: the published names go first.
TEST(FamilyDefaults, ExaonesOwnNamesGoFirst) {
  DecoderSpec spec = spec_of(
      "exaone",
      with(
          {{"activation_function", "silu"},
           {"hidden_act", "relu"},
           {"layer_norm_epsilon", 0.25},
           {"rms_norm_eps", 0.5}}));
  EXPECT_EQ(spec.blocks[0].mlp.activation, Activation::silu);
  EXPECT_EQ(spec.blocks[0].norm.eps, 0.25f);
}

TEST(FamilyDefaults, RefusesScalesThatGiveNoNumbers) {
  EXPECT_THAT(
      refusal("granite", with({{"logits_scaling", 0.0}})),
      HasSubstr("the scale of the logits is inf"));
  EXPECT_THAT(
      refusal(
          "phimoe",
          experts(
              {"num_local_experts", "num_experts_per_tok"},
              {{"router_jitter_noise", -0.01}})),
      HasSubstr("tolerance of the sparse mixer"));
}

// HunYuanMoEV1Config.attribute_map gives num_experts_per_tok to moe_topk.
TEST(FamilyDefaults, HunyuanTakesExpertsPerTokenForItsTopK) {
  DecoderSpec spec = spec_of(
      "hunyuan_v1_moe",
      with({{"num_experts", 4}, {"moe_topk", 1}, {"num_experts_per_tok", 3}}));
  EXPECT_EQ(spec.blocks[0].moe->experts_per_token, 3);
}

// modeling_nemotron_h.py: (time_step_min, inf), whatever time_step_limit says.
TEST(FamilyDefaults, NemotronHBoundsItsStepFromBelow) {
  auto limits = [](const json& extra) {
    json config = with(
        {{"hybrid_override_pattern", "M*-M"},
         {"mamba_num_heads", 4},
         {"mamba_head_dim", 8},
         {"n_groups", 2},
         {"ssm_state_size", 4},
         {"conv_kernel", 4}});
    config.update(extra);
    DecoderSpec spec = spec_of("nemotron_h", config);
    return std::dynamic_pointer_cast<const StateSpaceSpec>(spec.blocks[0].mixer)
        ->limits;
  };
  EXPECT_EQ(limits(json::object()).dt_min, 0.001f);
  json both = {{"time_step_min", 0.2}, {"time_step_limit", {0.0, 0.5}}};
  EXPECT_EQ(limits(both).dt_min, 0.2f);
  EXPECT_TRUE(std::isinf(limits(both).dt_max));
}

json without(std::initializer_list<const char*> keys, const json& extra = {}) {
  json config = extra.is_null() ? with(json::object()) : with(extra);
  for (const char* key : keys) {
    config.erase(key);
  }
  return config;
}

// rms_norm_eps of the classes.
TEST(FamilyDefaults, EpsOfTheNorms) {
  const std::vector<std::pair<const char*, float>> expected = {
      {"llama", 1e-6f},      {"mistral", 1e-6f},
      {"ministral3", 1e-5f}, {"qwen2", 1e-6f},
      {"qwen2_vl", 1e-6f},   {"qwen3", 1e-6f},
      {"gemma", 1e-6f},      {"gemma2", 1e-6f},
      {"phi3", 1e-5f},       {"arcee", 1e-5f},
      {"bitnet", 1e-5f},     {"ernie4_5", 1e-5f},
      {"exaone4", 1e-5f},    {"glm", 1.5625e-7f},
      {"granite", 1e-6f},    {"hunyuan_v1_dense", 1e-5f},
      {"olmo2", 1e-5f},      {"olmo3", 1e-5f},
      {"seed_oss", 1e-6f},   {"smollm3", 1e-6f}};
  for (const auto& [family, eps] : expected) {
    EXPECT_EQ(
        spec_of(family, without({"rms_norm_eps"})).blocks[0].norm.eps, eps)
        << family;
  }
  EXPECT_EQ(
      spec_of("starcoder2", without({"rms_norm_eps"})).blocks[0].norm.eps,
      1e-5f);
}

// num_key_value_heads and head_dim of the classes.
TEST(FamilyDefaults, HeadsThatTheConfigLeavesOut) {
  auto heads = [](const char* family) {
    return spec_of(family, without({"num_key_value_heads", "head_dim"}))
        .blocks[0]
        .attention.heads;
  };
  for (const char* family : {"glm", "glm4", "ernie4_5"}) {
    EXPECT_EQ(heads(family).key_value, 2) << family;
    EXPECT_EQ(heads(family).dim, 128) << family;
  }
  EXPECT_EQ(heads("starcoder2").key_value, 2);
  EXPECT_EQ(heads("gemma").dim, 256);
  EXPECT_EQ(heads("qwen3").dim, 128);
  EXPECT_EQ(heads("llama").dim, 8);  // hidden_size over the heads
  EXPECT_EQ(heads("llama").key_value, 4);
}

// Ministral3Config and Gemma4TextConfig fill in their settings for a null too.
TEST(FamilyDefaults, NullSettingsOfTheRotationAreTheClasss) {
  auto frequencies = [](const char* family, json config) {
    return spec_of(family, config).blocks[0].attention.rope->inv_freq;
  };
  for (const char* family : {"ministral3", "gemma4"}) {
    EXPECT_EQ(
        frequencies(family, with({{"rope_parameters", nullptr}})),
        frequencies(family, with(json::object())))
        << family;
  }
}

// Where attention_bias gives the output projection none, or nothing at all.
TEST(FamilyDefaults, BiasesOfTheAttention) {
  json biased = {{"attention_bias", true}};
  EXPECT_EQ(
      spec_of("helium", with(biased)).blocks[0].attention.bias,
      AttentionBias::qkv);
  EXPECT_EQ(
      spec_of("llama", with(biased)).blocks[0].attention.bias,
      AttentionBias::all);
  const std::initializer_list<const char*> solar = {
      "n_routed_experts",
      "n_shared_experts",
      "num_experts_per_tok",
      "moe_intermediate_size"};
  DecoderSpec spec = spec_of("solar_open", experts(solar, biased));
  EXPECT_EQ(spec.blocks[0].attention.bias, AttentionBias::qkv);
  EXPECT_EQ(
      spec_of("apertus", with({{"hidden_act", "relu"}, {"mlp_bias", true}}))
          .blocks[0]
          .mlp.bias,
      MlpBias::none);
  // SolarOpen's layers are all mixtures.
  spec = spec_of("solar_open", experts(solar, {{"first_k_dense_replace", 2}}));
  EXPECT_TRUE(spec.blocks[0].moe);
}

// Switches of published configs that the classes do not read.
TEST(FamilyDefaults, NormsOfHeadsThatNoSwitchTurnsOff) {
  json off = {{"use_qk_norm", false}};
  EXPECT_EQ(
      spec_of("hunyuan_v1_dense", with(off)).blocks[0].attention.qk_norm,
      QkNorm::per_head);
  EXPECT_EQ(
      spec_of(
          "minimax_m2",
          experts({"num_local_experts", "num_experts_per_tok"}, off))
          .blocks[0]
          .attention.qk_norm,
      QkNorm::projection);
  EXPECT_EQ(
      spec_of(
          "solar_open",
          experts(
              {"n_routed_experts",
               "n_shared_experts",
               "num_experts_per_tok",
               "moe_intermediate_size"},
              {{"use_qk_norm", true}}))
          .blocks[0]
          .attention.qk_norm,
      QkNorm::none);
}

// transformers/activations.py
TEST(FamilyDefaults, ReadsTheNamesOfActivations) {
  const std::vector<std::pair<const char*, Activation>> names = {
      {"swish", Activation::silu},
      {"gelu_python", Activation::gelu},
      {"gelu_new", Activation::gelu_tanh},
      {"gelu_accurate", Activation::gelu_tanh},
      {"relu2", Activation::relu_squared},
      {"tanh", Activation::tanh},
      {"sigmoid", Activation::sigmoid},
      {"linear", Activation::none}};
  for (const auto& [name, activation] : names) {
    EXPECT_EQ(
        spec_of("llama", with({{"hidden_act", name}})).blocks[0].mlp.activation,
        activation)
        << name;
  }
}

// Qwen3MoeConfig.attribute_map: its saved files have num_local_experts.
TEST(FamilyDefaults, Qwen3MoeCountsLocalExperts) {
  for (const char* key : {"num_experts", "num_local_experts"}) {
    DecoderSpec spec = spec_of(
        "qwen3_moe",
        experts({key, "num_experts_per_tok", "moe_intermediate_size"}));
    EXPECT_EQ(spec.blocks[0].moe->experts, 4) << key;
  }
}

// OlmoHybridConfig.__post_init__
TEST(FamilyDefaults, OlmoHybridSizesItsDeltaLayersByTheHeads) {
  DecoderSpec spec = spec_of("olmo_hybrid", with({{"num_hidden_layers", 3}}));
  const auto& delta =
      dynamic_cast<const GatedDeltaSpec&>(*spec.blocks[0].mixer);
  EXPECT_EQ(delta.heads.key_heads, 4);
  EXPECT_EQ(delta.heads.value_heads, 4);
  EXPECT_EQ(delta.heads.key_dim, 6);
  EXPECT_EQ(delta.heads.value_dim, 12);
  EXPECT_NE(spec.blocks[1].mixer, nullptr);
  EXPECT_EQ(spec.blocks[2].mixer, nullptr);  // the last sees everything
}

}  // namespace
}  // namespace mlxcel
