// Pairs on single experts of a mixture, stored one by one or as a stack.
#include "adapters/fuse.h"
#include "adapters/live.h"
#include "core/error.h"
#include "models/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

namespace mlxcel {
namespace {

constexpr int64_t kHidden = 64, kInner = 32, kExperts = 4;

WeightTensor filled(Shape shape, float first, float step) {
  std::byte* data = nullptr;
  WeightTensor tensor = make_weight(DType::f32, std::move(shape), &data);
  for (int64_t i = 0; i < element_count(tensor.shape); ++i) {
    float value = first + step * float(i % 7);
    std::memcpy(data + 4 * i, &value, 4);
  }
  return tensor;
}

float at(const WeightTensor& tensor, int64_t index) {
  float value = 0;
  std::memcpy(&value, tensor.data + 4 * index, 4);
  return value;
}

class ExpertPairs : public ::testing::Test {
 protected:
  ExpertPairs()
      : family_(*find_by_model_type("qwen3_moe")),
        spec_(decoder_spec(
            family_,
            Config(
                {{"model_type", "qwen3_moe"},
                 {"hidden_size", kHidden},
                 {"intermediate_size", 128},
                 {"moe_intermediate_size", kInner},
                 {"num_hidden_layers", 1},
                 {"num_attention_heads", 4},
                 {"num_key_value_heads", 2},
                 {"head_dim", 16},
                 {"rms_norm_eps", 1e-6},
                 {"vocab_size", 256},
                 {"rope_theta", 10000.0},
                 {"max_position_embeddings", 512},
                 {"num_experts", kExperts},
                 {"num_experts_per_tok", 2},
                 {"decoder_sparse_step", 1},
                 {"mlp_only_layers", nlohmann::json::array()},
                 {"norm_topk_prob", true},
                 {"tie_word_embeddings", false}},
                "config.json"))),
        names_(family_.names, spec_) {
    adapter_.folder = "adapter";
    adapter_.config.scale = 0.5;
  }

  void add_pair(const std::string& stem) {
    adapter_.pairs.push_back(
        {stem,
         filled({kHidden, 2}, 0.25f, 0.5f),
         filled({2, kInner}, -0.5f, 0.25f)});
  }
  ResolvedAdapter resolve() const {
    return resolve_adapter(adapter_, {family_, spec_, names_, weights_});
  }

  // 0.5 times the pair's B A at [row, column].
  double delta(int64_t row, int64_t column) const {
    const AdapterPair& pair = adapter_.pairs.front();
    double sum = 0;
    for (int64_t r = 0; r < 2; ++r) {
      sum += double(at(pair.a, column * 2 + r)) *
             double(at(pair.b, r * kInner + row));
    }
    return 0.5 * sum;
  }

  const Family& family_;
  DecoderSpec spec_;
  NameMap names_;
  WeightMap weights_;
  Adapter adapter_;
};

TEST_F(ExpertPairs, FuseIntoAStack) {
  const std::string key = "model.layers.0.mlp.switch_mlp.up_proj.weight";
  WeightTensor stack = filled({kExperts, kInner, kHidden}, 1, 0.125f);
  weights_.set(key, stack);
  add_pair("model.layers.0.mlp.experts.2.up_proj");
  ResolvedAdapter resolved = resolve();
  ThreadPool pool(2);
  fuse_adapters(
      {{&resolved, 1}}, {family_, spec_, names_, weights_}, weights_, pool);
  const WeightTensor& fused = weights_.at(key);
  ASSERT_EQ(fused.shape, stack.shape);
  for (int64_t i = 0; i < element_count(stack.shape); ++i) {
    int64_t expert = i / (kInner * kHidden);
    double expected = at(stack, i);
    if (expert == 2) {
      expected += delta(i / kHidden % kInner, i % kHidden);
    }
    ASSERT_NEAR(at(fused, i), expected, 1e-6) << i;
  }
}

TEST_F(ExpertPairs, AreRefusedLiveByName) {
  weights_.set(
      "model.layers.0.mlp.experts.2.up_proj.weight",
      filled({kInner, kHidden}, 1, 0));
  add_pair("model.layers.0.mlp.experts.2.up_proj");
  ResolvedAdapter resolved = resolve();
  try {
    live_terms({{0, &resolved}}, spec_);
    FAIL();
  } catch (const AdapterError& error) {
    EXPECT_THAT(
        error.what(),
        ::testing::HasSubstr("model.layers.0.mlp.experts.2.up_proj"));
  }
}

TEST_F(ExpertPairs, AWholeStackTakesNoPair) {
  weights_.set(
      "model.layers.0.mlp.switch_mlp.up_proj.weight",
      filled({kExperts, kInner, kHidden}, 1, 0));
  add_pair("model.layers.0.mlp.switch_mlp.up_proj");
  EXPECT_THAT(
      [&] { resolve(); },
      ::testing::ThrowsMessage<AdapterError>(::testing::HasSubstr(
          "its pair on model.layers.0.mlp.switch_mlp.up_proj (lora_a ")));
}

}  // namespace
}  // namespace mlxcel
