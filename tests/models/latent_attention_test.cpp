// Latent attention as a part of a model: an adapter on the joined matrix of
// keys and values acts as if the matrix were changed, and both namings of the
// matrix give the same model.
#include "core/error.h"
#include "io/safetensors.h"
#include "models/builder.h"
#include "models/registry.h"
#include "support/fixtures.h"
#include "support/models/reference_backend.h"
#include "support/models/sequences.h"
#include "support/models/text_case.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <random>

namespace mlxcel {
namespace {

using testing::Logits;

constexpr const char* kJoined = "model.layers.0.self_attn.1.kv_b_proj";
constexpr int64_t kHeads = 2, kPlain = 6, kValue = 5, kLatent = 8, kRank = 3;
constexpr int64_t kRows = kHeads * (kPlain + kValue);

std::vector<float> floats_of(const WeightTensor& tensor) {
  std::vector<float> out(size_t(element_count(tensor.shape)));
  read_as_f32(tensor, out.data());
  return out;
}

WeightTensor tensor_of(const std::vector<float>& values, Shape shape) {
  std::byte* data = nullptr;
  WeightTensor out = make_weight(DType::f32, std::move(shape), &data);
  std::memcpy(data, values.data(), values.size() * sizeof(float));
  return out;
}

class LatentAttentionModel : public ::testing::Test {
 protected:
  LatentAttentionModel() {
    std::filesystem::path folder = std::filesystem::path(MLXCEL_TEST_FIXTURES) /
                                   "text" / "longcat_flash" / "model";
    std::ifstream stream(folder / "config.json");
    config_ = Config(nlohmann::json::parse(stream), "config.json");
    weights_ = read_safetensors(folder / "model.safetensors").tensors;
  }

  Logits run(const WeightMap& weights, LiveTerms terms = {}) const {
    const Family& family = *find_by_model_type("longcat_flash");
    NameMap names(family.names, decoder_spec(family, config_));
    MatrixSource source(weights, config_);
    auto backend = testing::make_reference_backend();
    auto model = build_model(
        family,
        {.backend = *backend,
         .names = names,
         .source = source,
         .cache_dtype = DType::f32,
         .terms = std::move(terms)});
    testing::SequenceRunner runner(*backend, *model);
    std::vector<int32_t> tokens = {3, 17, 30, 4, 4, 21, 9};
    return runner.prefill(runner.add({0.5f}), tokens);
  }

  Config config_{nlohmann::json::object(), ""};
  WeightMap weights_;
};

TEST_F(LatentAttentionModel, AnAdapterOnTheJoinedMatrixActsAsIfItWereChanged) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal(0, 0.4f);
  auto draw = [&](int64_t count) {
    std::vector<float> out(static_cast<size_t>(count));
    for (float& value : out) {
      value = normal(random);
    }
    return out;
  };
  for (bool rank_first : {false, true}) {
    LowRankTerm term{.rows = kRows, .rank = kRank, .scale = 1.5f};
    term.rank_first = rank_first;
    std::vector<float> a = draw(kLatent * kRank), b = draw(kRank * kRows);
    term.a = tensor_of(
        a, rank_first ? Shape{kRank, kLatent} : Shape{kLatent, kRank});
    term.b =
        tensor_of(b, rank_first ? Shape{kRows, kRank} : Shape{kRank, kRows});
    Logits live = run(weights_, {{"layers.1.attention.kv_b", {term}}});

    std::string key = std::string(kJoined) + ".weight";
    std::vector<float> w = floats_of(weights_.at(key));
    for (int64_t o = 0; o < kRows; ++o) {
      for (int64_t i = 0; i < kLatent; ++i) {
        double sum = 0;
        for (int64_t r = 0; r < kRank; ++r) {
          sum +=
              double(a[size_t(rank_first ? r * kLatent + i : i * kRank + r)]) *
              double(b[size_t(rank_first ? o * kRank + r : r * kRows + o)]);
        }
        w[size_t(o * kLatent + i)] += float(0.5 * 1.5 * sum);
      }
    }
    WeightMap changed = weights_;
    changed.set(key, tensor_of(w, {kRows, kLatent}));
    Logits wanted = run(changed);
    EXPECT_LT(testing::max_difference(live, wanted), 1e-4) << rank_first;
    EXPECT_GT(testing::max_difference(run(weights_), wanted), 0.05);
  }
}

// MLX stores [heads, latent, plain] and [heads, value, latent].
TEST_F(LatentAttentionModel, ReadsTheMatrixJoinedOrSplit) {
  WeightMap split = weights_;
  for (const char* prefix :
       {"model.layers.0.self_attn.0.", "model.layers.1.self_attn.1."}) {
    std::string key = std::string(prefix) + "kv_b_proj.weight";
    std::vector<float> w = floats_of(weights_.at(key));
    std::vector<float> keys, values;
    for (int64_t h = 0; h < kHeads; ++h) {
      const float* head = w.data() + h * (kPlain + kValue) * kLatent;
      for (int64_t c = 0; c < kLatent; ++c) {
        for (int64_t r = 0; r < kPlain; ++r) {
          keys.push_back(head[r * kLatent + c]);
        }
      }
      values.insert(
          values.end(),
          head + kPlain * kLatent,
          head + (kPlain + kValue) * kLatent);
    }
    split.erase(key);
    split.set(
        std::string(prefix) + "embed_q.weight",
        tensor_of(keys, {kHeads, kLatent, kPlain}));
    split.set(
        std::string(prefix) + "unembed_out.weight",
        tensor_of(values, {kHeads, kValue, kLatent}));
  }
  EXPECT_EQ(testing::max_difference(run(split), run(weights_)), 0);

  split.erase("model.layers.0.self_attn.0.unembed_out.weight");
  try {
    run(split);
    FAIL() << "a checkpoint without values was taken";
  } catch (const CheckpointError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("value_up"));
  }
}

}  // namespace
}  // namespace mlxcel
