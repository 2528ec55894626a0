// The checks before a backend is called, and what they say.
#include "ops/ops.h"

#include "core/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mlxcel {
namespace {

using ::testing::HasSubstr;

struct NoStorage : TensorStorage {};

Tensor tensor(int64_t rows, int64_t cols) {
  return Tensor(DType::f32, rows, cols, std::make_shared<NoStorage>());
}

// Counts the calls that reach it.
class CountingBackend : public Backend {
 public:
  int calls = 0;

  std::string description() const override {
    return "counting";
  }
  std::unique_ptr<Linear> prepare_linear(LinearWeights) override {
    return nullptr;
  }
  std::unique_ptr<Experts> prepare_experts(ExpertWeights) override {
    return nullptr;
  }
  std::unique_ptr<HeadLinear> prepare_heads(HeadWeights) override {
    return nullptr;
  }
  std::unique_ptr<Embedding> prepare_embedding(EmbeddingWeights) override {
    return nullptr;
  }
  std::unique_ptr<Norm> prepare_norm(NormWeights) override {
    return nullptr;
  }
  std::unique_ptr<Rope> prepare_rope(RopeTable) override {
    return nullptr;
  }
  std::unique_ptr<KvCache> make_kv_cache(const KvCacheSpec&) override {
    return nullptr;
  }
  Tensor embed(const Step&, const Embedding&, float) override {
    return count();
  }
  Tensor norm(const Step&, const Tensor&, const Norm&) override {
    return count();
  }
  Tensor linear(const Step&, const Tensor&, const Linear&, const LinearOptions&)
      override {
    return count();
  }
  Tensor mlp(
      const Step&,
      const Tensor&,
      const MlpWeights&,
      const LinearOptions&) override {
    return count();
  }
  Tensor moe(
      const Step&,
      const Tensor&,
      const MoeWeights&,
      const LinearOptions&) override {
    return count();
  }
  Tensor attention(
      const Step&,
      const Tensor&,
      const AttentionArgs&,
      KvCache&,
      int,
      const Tensor*) override {
    return count();
  }
  Tensor latent_attention(
      const Step&,
      const Tensor&,
      const Tensor&,
      const LatentAttentionArgs&,
      KvCache&,
      int) override {
    return count();
  }
  Tensor add(const Step&, const Tensor&, const Tensor&, float) override {
    return count();
  }
  Tensor multiply(
      const Step&,
      const Tensor&,
      const Tensor*,
      const MultiplyOptions&) override {
    return count();
  }
  Tensor weighted_sum(
      const Step&,
      const Tensor&,
      const std::vector<Tensor>&,
      const Tensor&,
      int64_t) override {
    return count();
  }
  Tensor match_size(const Step&, const Tensor&, const Tensor&) override {
    return count();
  }
  Tensor cut_below(const Step&, const Tensor&, int64_t, float) override {
    return count();
  }
  Tensor head(const Step&, const Tensor&, const HeadArgs&) override {
    return count();
  }
  void read(const Tensor&, float*) override {}

 private:
  Tensor count() {
    ++calls;
    return tensor(1, 1);
  }
};

class FakeCache : public KvCache {
 public:
  FakeCache() : KvCache({{{2, 16, 16}, {2, 16, 16}}, DType::f16}) {}
  void reserve(int) override {}
  int num_blocks() const override {
    return 4;
  }
  void copy_block(int, int) override {}
  void reserve_states(int) override {}
  int num_states() const override {
    return 2;
  }
  void copy_state(int, int) override {}
  void clear_state(int) override {}
};

class OpsTest : public ::testing::Test {
 protected:
  OpsTest() {
    step_.tokens = {1, 2, 3, 4, 5};
    step_.num_prompt_rows = 4;
    step_.segments.resize(2);
    step_.segments[0] = {.first_row = 0, .num_rows = 4, .position = 62};
    step_.segments[0].blocks = first_blocks_;
    step_.segments[1] = {
        .first_row = 4, .num_rows = 1, .position = 5, .prompt = false};
    step_.segments[1].blocks = second_blocks_;
    args_.num_heads = 4;
    args_.num_kv_heads = 2;
    args_.head_dim = 16;
    args_.scale = 0.25f;
  }

  template <typename Call>
  void expect_refused(
      Call call, const std::string& summary, const std::string& why) {
    try {
      call();
      ADD_FAILURE() << "accepted: " << summary;
    } catch (const ShapeError& error) {
      EXPECT_EQ(error.summary(), summary);
      EXPECT_EQ(error.why(), why);
      EXPECT_FALSE(error.fix().empty());
    }
    EXPECT_EQ(backend_.calls, 0);
  }
  void attend() {
    ops::attention(
        backend_, step_, tensor(5, qkv_cols_), args_, cache_, layer_);
  }

  std::vector<int32_t> first_blocks_ = {0, 3}, second_blocks_ = {1};
  CountingBackend backend_;
  FakeCache cache_;
  Step step_;
  AttentionArgs args_;
  int64_t qkv_cols_ = 8 * 16;
  int layer_ = 1;
};

TEST_F(OpsTest, GoodCallsReachTheBackend) {
  Norm norm(8);
  Linear linear(8, 6), up(8, 20), down(10, 8);
  Embedding table(6, 8);
  Tensor x = tensor(5, 8), residual = tensor(5, 6);
  step_.output_rows = {1, 4};
  ops::embed(backend_, step_, table);
  ops::norm(backend_, step_, x, norm);
  ops::linear(
      backend_, step_, x, linear, {.norm = &norm, .residual = &residual});
  ops::mlp(backend_, step_, x, {.up = &up, .down = &down}, {.residual = &x});
  ops::add(backend_, step_, x, x);
  ops::head(backend_, step_, x, {.norm = &norm, .head = &linear});
  attend();
  EXPECT_EQ(backend_.calls, 7);
}

TEST_F(OpsTest, TokensInsideTheTable) {
  Embedding table(5, 8);
  expect_refused(
      [&] { ops::embed(backend_, step_, table); },
      "embed: a token is outside the table",
      "token 5, table [5, 8]");
  step_.tokens[0] = -1;
  expect_refused(
      [&] { ops::embed(backend_, step_, table); },
      "embed: a token is outside the table",
      "token -1, table [5, 8]");
}

TEST_F(OpsTest, ShapesOfLinears) {
  Linear linear(8, 6), up(8, 20), wrong_down(9, 8);
  Norm norm(9);
  Tensor residual = tensor(5, 8);
  expect_refused(
      [&] { ops::linear(backend_, step_, tensor(5, 7), linear); },
      "linear: the weight does not fit the input",
      "weight [6, 8], input [5, 7]");
  expect_refused(
      [&] { ops::linear(backend_, step_, tensor(4, 8), linear); },
      "linear: the input does not fit the step",
      "input [4, 8], step of 5 rows");
  expect_refused(
      [&] {
        ops::linear(backend_, step_, tensor(5, 8), linear, {.norm = &norm});
      },
      "linear: the input norm does not fit",
      "norm [9], features [8]");
  expect_refused(
      [&] {
        ops::linear(
            backend_, step_, tensor(5, 8), linear, {.residual = &residual});
      },
      "linear: the residual does not fit the output",
      "residual [5, 8], output [5, 6]");
  expect_refused(
      [&] {
        ops::mlp(
            backend_, step_, tensor(5, 8), {.up = &up, .down = &wrong_down});
      },
      "mlp: up and down do not fit each other",
      "gate and up [20, 8], down [8, 9]");
}

TEST_F(OpsTest, ExpertsFitTheirRouterAndEachOther) {
  Linear router(8, 3), wrong_router(8, 4);
  Linear shared_up(7, 20), shared_down(10, 8);
  Experts up(3, 8, 20), down(3, 10, 8), wrong_down(3, 9, 8);
  MoeWeights good{
      .router = &router, .experts_per_token = 2, .up = &up, .down = &down};
  auto run = [&](const MoeWeights& weights) {
    ops::moe(backend_, step_, tensor(5, 8), weights);
  };
  MoeWeights bad = good;
  bad.down = &wrong_down;
  expect_refused(
      [&] { run(bad); },
      "moe: up and down do not fit each other",
      "gate and up [20, 8], down [8, 9]");
  bad = good;
  bad.router = &wrong_router;
  expect_refused(
      [&] { run(bad); },
      "moe: the router does not fit the experts",
      "router [4, 8], 3 experts, input [5, 8]");
  Experts fewer(2, 10, 8);
  bad = good;
  bad.down = &fewer;
  expect_refused(
      [&] { run(bad); },
      "moe: the experts' two matrices differ in number",
      "3 experts up, 2 down and 0 that change nothing, input [5, 8]");
  bad = good;
  bad.router = &wrong_router;
  bad.identity_experts = 1;
  bad.experts_per_token = 5;
  expect_refused(
      [&] { run(bad); }, "moe: a row cannot use so many experts", "5 of 4");
  bad = good;
  bad.selection_bias = {1, 2};
  expect_refused(
      [&] { run(bad); },
      "moe: the selection bias does not fit the router",
      "bias [2], router 3");
  bad = good;
  bad.routing.groups.count = 2;
  expect_refused(
      [&] { run(bad); },
      "moe: the experts do not divide into groups",
      "3 experts, 2 groups, of which a row uses 1");
  bad = good;
  bad.activation = Activation::xielu;
  expect_refused(
      [&] { run(bad); },
      "moe: experts have no xIELU",
      "its numbers are an MLP's");
  bad = good;
  bad.experts_per_token = 4;
  expect_refused(
      [&] { run(bad); }, "moe: a row cannot use so many experts", "4 of 3");
  bad = good;
  bad.shared = {.up = &shared_up, .down = &shared_down};
  expect_refused(
      [&] { run(bad); },
      "moe: the shared expert does not fit the input",
      "up [20, 7], down [8, 10], input [5, 8]");
  run(good);
  good.router = &wrong_router;
  good.identity_experts = 1;
  run(good);
  EXPECT_EQ(backend_.calls, 2);
}

TEST_F(OpsTest, RowsOfTheHead) {
  Linear head(8, 6);
  step_.output_rows = {4, 1};
  expect_refused(
      [&] { ops::head(backend_, step_, tensor(5, 8), {.head = &head}); },
      "head: an output row is not in the step",
      "row 1 after 4, step of 5 rows");
  step_.output_rows = {5};
  expect_refused(
      [&] { ops::head(backend_, step_, tensor(5, 8), {.head = &head}); },
      "head: an output row is not in the step",
      "row 5 after -1, step of 5 rows");
}

TEST_F(OpsTest, CacheBlocksCoverThePositions) {
  first_blocks_ = {0};
  step_.segments[0].blocks = first_blocks_;
  expect_refused(
      [&] { attend(); },
      "attention: the sequence has too few cache blocks",
      "1 blocks of 64 positions for 66 positions");
  first_blocks_ = {0, 4};
  step_.segments[0].blocks = first_blocks_;
  expect_refused(
      [&] { attend(); },
      "attention: a cache block does not exist",
      "block 4 of 4");
}

TEST_F(OpsTest, LayersAndHeads) {
  layer_ = 2;
  expect_refused(
      [&] { attend(); },
      "attention: the cache has no such layer",
      "layer 2 of 2");
  layer_ = 0;
  qkv_cols_ = 100;
  expect_refused(
      [&] { attend(); },
      "attention: the projection does not fit the heads",
      "projection [5, 100], expected [5, 128] for 4 query and 2 key heads of "
      "16");
  qkv_cols_ = 8 * 16;
  args_.sinks = {0, 0};
  expect_refused(
      [&] { attend(); },
      "attention: sinks do not fit the heads",
      "sinks [2], heads 4");
  args_.sinks.clear();
  Norm norm(24);
  args_.q_norm = &norm;
  expect_refused(
      [&] { attend(); },
      "attention: the query norm does not fit",
      "norm [24], features [64]");
  args_.q_norm = nullptr;
  args_.num_kv_heads = 3;
  expect_refused(
      [&] { attend(); },
      "attention: heads do not divide into groups",
      "4 query heads, 3 key heads, head size 16");
  args_.num_kv_heads = 4;
  expect_refused(
      [&] { attend(); },
      "attention: the cache's layer does not fit",
      "cache 2 heads of 16 and 16, attention 4 heads of 16");
}

TEST_F(OpsTest, SegmentsCoverTheRows) {
  step_.segments[1].first_row = 3;
  expect_refused(
      [&] { attend(); },
      "attention: the step's segments do not follow each other",
      "a segment of 1 rows starts at row 3, position 5; expected row 4");
  step_.segments.pop_back();
  expect_refused(
      [&] { attend(); },
      "attention: the step's segments do not cover its rows",
      "segments hold 4 rows, 4 of them prompt rows; the step has 5 and 4");
}

TEST(GraphBackend, MissingLibraryIsNamed) {
  setenv("MLXCEL_GRAPH_LIBRARY", "/nowhere/libgraph.so", 1);
  try {
    make_graph_backend({});
    FAIL() << "no exception";
  } catch (const UsageError& error) {
    EXPECT_EQ(error.summary(), "the graph backend is not installed");
    EXPECT_THAT(error.why(), HasSubstr("/nowhere/libgraph.so"));
    EXPECT_THAT(error.fix(), HasSubstr("--backend cpu"));
  }
  unsetenv("MLXCEL_GRAPH_LIBRARY");
}

}  // namespace
}  // namespace mlxcel
