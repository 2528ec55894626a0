// The weight-name map in both directions.
#include "models/names.h"

#include "models/registry.h"
#include "support/fixtures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>

namespace mlxcel {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kHidden = 32, kInner = 40, kVocab = 100;

// Two layers, 4 query heads and 2 key/value heads of 10: q has 40 rows, k and v
// have 20 each.
Config small_config(const std::string& model_type) {
  return Config(
      {{"model_type", model_type},
       {"hidden_size", kHidden},
       {"num_hidden_layers", 2},
       {"num_attention_heads", 4},
       {"num_key_value_heads", 2},
       {"head_dim", 10},
       {"intermediate_size", kInner},
       {"vocab_size", kVocab},
       {"rms_norm_eps", 1e-5},
       {"norm_epsilon", 1e-5},
       {"hidden_act", "silu"},
       {"hidden_activation", "gelu_pytorch_tanh"},
       {"query_pre_attn_scalar", 16},
       {"num_experts_per_tok", 2},
       {"moe_intermediate_size", kInner},
       {"shared_expert_intermediate_size", 2 * kInner},
       {"sliding_window", 8},
       {"max_position_embeddings", 64}},
      "config.json");
}

NameMap names_of(const Family& family) {
  nlohmann::json json = small_config(family.model_types[0]).json();
  if (family.name == "Llama" || family.name == "Gemma" ||
      family.name == "OLMo 2" || family.name == "OLMoE") {
    json.erase("sliding_window");
  }
  if (family.name != "Gemma 2") {
    json.erase("query_pre_attn_scalar");
  }
  if (family.name == "Mixtral") {
    json["num_local_experts"] = 3;
  } else if (family.names.rules[0].roles[0] == "layers.{l}.moe.router") {
    json["num_experts"] = 3;
    json["mlp_only_layers"] = {0};
  }
  return NameMap(
      family.names, decoder_spec(family, Config(json, "config.json")));
}

NameMap names_of(std::string_view model_type) {
  return names_of(*find_by_model_type(model_type));
}

WeightMap checkpoint(const std::vector<std::string>& stems) {
  WeightMap weights;
  for (const std::string& stem : stems) {
    weights.set(stem + ".weight", WeightTensor{});
  }
  return weights;
}

::testing::Matcher<const Target&> target(
    const std::string& stem,
    int64_t first,
    int64_t count,
    int64_t named_first,
    const std::string& slot,
    int64_t slot_first) {
  return ::testing::AllOf(
      ::testing::Field(&Target::rows, StemRows{stem, first, count}),
      ::testing::Field(&Target::named_first, named_first),
      ::testing::Field(&Target::slot, slot),
      ::testing::Field(&Target::slot_first, slot_first));
}

// The config of a fixture's model, the fields of a nested text model on top.
Config fixture_config(const std::string& name) {
  std::ifstream file(
      testing::fixture_folder("text", name) / "model" / "config.json");
  nlohmann::json json = nlohmann::json::parse(file);
  if (json.contains("text_config")) {
    nlohmann::json inner = json["text_config"];
    inner.erase("model_type");
    json.update(inner);
  }
  return Config(std::move(json), name);
}

TEST(Names, EveryStemLeadsToItsRolesAndBack) {
  size_t checked = 0;
  for (const std::string& name : testing::fixture_cases("text", "model")) {
    Config config = fixture_config(name);
    const Family* family =
        find_by_model_type(config.get<std::string>("model_type"));
    if (family == nullptr || family->decoder == nullptr) {
      continue;  // tests of the registry name what is missing
    }
    ++checked;
    NameMap names(family->names, decoder_spec(*family, config));
    for (const std::string& stem : names.known_stems()) {
      std::vector<RolePart> parts = names.parts_of(stem);
      ASSERT_FALSE(parts.empty()) << name << " " << stem;
      std::map<std::string, int64_t> held;
      for (const RolePart& part : parts) {
        held[part.role.name] += part.count;
        std::vector<StemRows> back = names.stems_of(part.role.name);
        EXPECT_TRUE(std::any_of(
            back.begin(),
            back.end(),
            [&](auto& rows) {
              return rows.stem == stem && rows.first == part.first &&
                     rows.count == part.count &&
                     rows.role_first == part.role_first;
            }))
            << name << " " << stem;
      }
      for (const auto& [role, count] : held) {
        EXPECT_EQ(names.rows(parse_role(role)), count) << name << " " << stem;
      }
    }
  }
  EXPECT_GT(checked, 0u);
}

TEST(Names, TheSameStemMeansAnotherNormElsewhere) {
  const std::string stem = "model.layers.1.post_attention_layernorm";
  EXPECT_EQ(names_of("llama").parts_of(stem)[0].role.name, "layers.1.mlp_norm");
  EXPECT_EQ(
      names_of("gemma2").parts_of(stem)[0].role.name,
      "layers.1.attention_post_norm");
  EXPECT_EQ(
      names_of("olmo2").parts_of(stem)[0].role.name,
      "layers.1.attention_post_norm");
  EXPECT_THAT(
      names_of("olmo2").parts_of("model.layers.1.input_layernorm"), IsEmpty());
}

TEST(Names, SeparateProjectionsAreRowsOfTheModelsLinear) {
  NameMap names = names_of("llama");
  WeightMap weights = checkpoint(
      {"model.layers.1.self_attn.q_proj",
       "model.layers.1.self_attn.k_proj",
       "model.layers.1.self_attn.v_proj",
       "model.layers.1.mlp.up_proj"});
  EXPECT_THAT(
      names.resolve("model.layers.1.self_attn.v_proj", weights),
      ElementsAre(target(
          "model.layers.1.self_attn.v_proj",
          0,
          20,
          0,
          "layers.1.attention.qkv",
          60)));
  EXPECT_THAT(
      names.resolve("model.layers.1.mlp.up_proj", weights),
      ElementsAre(target(
          "model.layers.1.mlp.up_proj", 0, 40, 0, "layers.1.mlp.up", 40)));
}

TEST(Names, AProjectionIsFoundInAFusedTensor) {
  NameMap names = names_of("phi3");
  WeightMap weights = checkpoint(
      {"model.layers.0.self_attn.qkv_proj", "model.layers.0.mlp.gate_up_proj"});
  EXPECT_THAT(
      names.resolve("model.layers.0.self_attn.k_proj", weights),
      ElementsAre(target(
          "model.layers.0.self_attn.qkv_proj",
          40,
          20,
          0,
          "layers.0.attention.qkv",
          40)));
  EXPECT_THAT(
      names.resolve("model.layers.0.self_attn.qkv_proj", weights),
      ElementsAre(target(
          "model.layers.0.self_attn.qkv_proj",
          0,
          80,
          0,
          "layers.0.attention.qkv",
          0)));
  EXPECT_THAT(
      names.resolve("model.layers.0.mlp.up_proj", weights),
      ElementsAre(target(
          "model.layers.0.mlp.gate_up_proj",
          40,
          40,
          0,
          "layers.0.mlp.up",
          40)));
}

TEST(Names, AFusedNameIsFoundInSeparateTensors) {
  NameMap names = names_of("phi3");
  WeightMap weights = checkpoint(
      {"model.layers.0.self_attn.q_proj",
       "model.layers.0.self_attn.k_proj",
       "model.layers.0.self_attn.v_proj"});
  EXPECT_THAT(
      names.resolve("model.layers.0.self_attn.qkv_proj", weights),
      ElementsAre(
          target(
              "model.layers.0.self_attn.q_proj",
              0,
              40,
              0,
              "layers.0.attention.qkv",
              0),
          target(
              "model.layers.0.self_attn.k_proj",
              0,
              20,
              40,
              "layers.0.attention.qkv",
              40),
          target(
              "model.layers.0.self_attn.v_proj",
              0,
              20,
              60,
              "layers.0.attention.qkv",
              60)));
  weights.erase("model.layers.0.self_attn.k_proj.weight");
  EXPECT_THAT(
      names.resolve("model.layers.0.self_attn.qkv_proj", weights), IsEmpty());
}

TEST(Names, ExpertsAreSeparateTensorsOrOneStack) {
  NameMap names = names_of("qwen3_moe");
  const std::string stack = "model.layers.1.mlp.switch_mlp.down_proj";
  const std::string third = "model.layers.1.mlp.experts.2.down_proj";
  std::vector<RolePart> parts = names.parts_of(stack);
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[2].role.name, "layers.1.moe.experts.2.down");
  EXPECT_EQ(parts[2].first, 2 * kHidden);
  EXPECT_EQ(names.cols(parts[2].role), kInner);
  EXPECT_EQ(names.parts_of(third)[0].role, parts[2].role);
  EXPECT_EQ(
      names.locate("layers.1.moe.experts.2.down", checkpoint({stack})),
      (StemRows{stack, 2 * kHidden, kHidden, 3}));
  EXPECT_THAT(
      names.resolve(third, checkpoint({third})),
      ElementsAre(
          target(third, 0, kHidden, 0, "layers.1.moe.experts.2.down", 0)));
  // Layer 0 is dense, and there is no expert 3.
  EXPECT_THAT(names.parts_of("model.layers.0.mlp.gate"), IsEmpty());
  EXPECT_THAT(names.parts_of("model.layers.1.mlp.up_proj"), IsEmpty());
  EXPECT_EQ(names.parts_of("model.layers.0.mlp.up_proj").size(), 1u);
  EXPECT_THAT(
      names.parts_of("model.layers.1.mlp.experts.3.down_proj"), IsEmpty());
  for (const char* role :
       {"layers.1.moe.experts.3.down",
        "layers.1.moe.experts.-1.down",
        "layers.1.moe.experts.down",
        "layers.1.moe.experts.0.",
        "layers.1.moe.shared.up",
        "layers.1.mlp.up"}) {
    EXPECT_EQ(names.rows(parse_role(role)), 0) << role;
  }
}

TEST(Names, ASharedExpertIsRowsOfOneLinear) {
  NameMap names = names_of("qwen2_moe");
  const std::string up = "model.layers.1.mlp.shared_expert.up_proj";
  EXPECT_THAT(
      names.resolve(up, checkpoint({up})),
      ElementsAre(
          target(up, 0, 2 * kInner, 0, "layers.1.moe.shared.up", 2 * kInner)));
  EXPECT_EQ(names.rows(parse_role("layers.1.moe.shared_gate")), 1);
}

TEST(Names, SpellingsOfOneFamilyAreOneTensor) {
  NameMap names = names_of("llama");
  WeightMap bare = checkpoint({"layers.0.self_attn.o_proj"});
  EXPECT_THAT(
      names.resolve("model.layers.0.self_attn.o_proj", bare),
      ElementsAre(target(
          "layers.0.self_attn.o_proj", 0, 32, 0, "layers.0.attention.o", 0)));
}

TEST(Names, ForeignPrefixesAndAbsentLayersAreUnknown) {
  NameMap names = names_of("llama");
  WeightMap weights = checkpoint({"model.layers.0.self_attn.q_proj"});
  for (const char* stem :
       {"language_model.model.layers.0.self_attn.q_proj",
        "model.layers.2.self_attn.q_proj",
        "model.layers.-1.self_attn.q_proj",
        "model.layers.00.self_attn.q_proj",
        "model.layers.0.self_attn.q_proj.weight",
        "model.lm_head",
        ""}) {
    EXPECT_THAT(names.resolve(stem, weights), IsEmpty()) << stem;
  }
}

TEST(Names, RolesHaveTheSizesOfTheSpec) {
  NameMap names = names_of("llama");
  auto rows = [&](const char* role) { return names.rows(parse_role(role)); };
  auto cols = [&](const char* role) { return names.cols(parse_role(role)); };
  EXPECT_EQ(rows("embedding"), kVocab);
  EXPECT_EQ(cols("head"), kHidden);
  EXPECT_EQ(rows("layers.0.attention.q"), 40);
  EXPECT_EQ(cols("layers.0.attention.o"), 40);
  EXPECT_EQ(rows("layers.1.mlp.down"), kHidden);
  EXPECT_EQ(cols("layers.1.mlp.down"), kInner);
  EXPECT_EQ(rows("layers.2.mlp.down"), 0);
  EXPECT_EQ(rows("layers.0.attention.q_norm"), 0);
  EXPECT_EQ(rows("layers.x.mlp.down"), 0);
}

TEST(Names, KeysSplitAtTheirLastDot) {
  EXPECT_EQ(
      split_key("lm_head.scales"),
      std::pair(std::string_view("lm_head"), std::string_view("scales")));
  EXPECT_EQ(
      split_key("weight"),
      std::pair(std::string_view("weight"), std::string_view()));
}

// Two of our layers are one of the checkpoint's.
TEST(Names, APairOfLayersSharesItsNumber) {
  FamilyNames names = hf_decoder_names(
      {{"layers.{l/2}.mlps.{l%2}.up_proj", {"layers.{l}.mlp.up"}}});
  DecoderSpec spec = decoder_spec(*find_by_model_type("olmo2"), [] {
    nlohmann::json json = small_config("olmo2").json();
    json["num_hidden_layers"] = 4;
    json.erase("sliding_window");
    json.erase("query_pre_attn_scalar");
    return Config(json, "config.json");
  }());
  NameMap map(names, spec);
  auto stem_of = [&](const std::string& role) {
    return map.stems_of(role).front().stem;
  };
  EXPECT_EQ(stem_of("layers.0.mlp.up"), "model.layers.0.mlps.0.up_proj");
  EXPECT_EQ(stem_of("layers.1.mlp.up"), "model.layers.0.mlps.1.up_proj");
  EXPECT_EQ(stem_of("layers.3.mlp.up"), "model.layers.1.mlps.1.up_proj");
  EXPECT_THAT(map.parts_of("model.layers.2.mlps.0.up_proj"), IsEmpty());
}

}  // namespace
}  // namespace mlxcel
