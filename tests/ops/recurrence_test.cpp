// Every recurrence on every instruction set and on the graph backend against
// plain loops in double precision; and the same bits however a prompt is cut
// and whoever shares the step.
#include "core/cpu_features.h"
#include "core/error.h"
#include "ops/graph_support.h"
#include "ops/ops.h"
#include "ops/state_copies.h"
#include "support/models/reference_backend.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>

namespace mlxcel {
namespace {

std::unique_ptr<Backend> cpu_backend(Isa isa, int threads) {
  ::setenv("MLXCEL_CPU_ISA", std::string(name_of(isa)).c_str(), 1);
  auto backend = make_cpu_backend({.threads = threads});
  ::unsetenv("MLXCEL_CPU_ISA");
  return backend;
}

// What an op is made of: its inputs by number of columns, numbers and norms.
class Parts {
 public:
  Parts(Backend& backend, const Step& step, size_t seed)
      : backend_(backend), step_(step), random_(uint32_t(seed)) {}

  // Row t holds numbers of token t: a table of random rows.
  const Tensor* input(int64_t cols) {
    std::vector<float> table = numbers(kTokens * cols, 1);
    EmbeddingWeights weights;
    weights.table.out = kTokens;
    weights.table.in = cols;
    weights.table.weight = testing::make_tensor(
        DType::f32, {kTokens, cols}, table.data(), table.size() * 4);
    auto embedding = backend_.prepare_embedding(std::move(weights));
    inputs_.push_back(
        std::make_unique<Tensor>(backend_.embed(step_, *embedding, 1)));
    return inputs_.back().get();
  }
  const Constants* constants(int64_t count, float scale = 1, float offset = 0) {
    std::vector<float> values = numbers(count, scale);
    for (float& value : values) {
      value += offset;
    }
    constants_.push_back(backend_.prepare_constants(std::move(values)));
    return constants_.back().get();
  }
  // Below zero.
  const Constants* rates(int64_t count) {
    std::vector<float> values = numbers(count, 1);
    for (float& value : values) {
      value = -0.1f - std::fabs(value);
    }
    constants_.push_back(backend_.prepare_constants(std::move(values)));
    return constants_.back().get();
  }
  const Norm* norm(int64_t size) {
    std::vector<float> values = numbers(size, 1);
    NormWeights weights{.size = size, .eps = 1e-3f};
    weights.weight = testing::make_tensor(
        DType::f32, {size}, values.data(), values.size() * 4);
    norms_.push_back(backend_.prepare_norm(std::move(weights)));
    return norms_.back().get();
  }
  Convolution convolution(
      int taps, int64_t channels, int64_t state, bool bias = true) {
    return {
        .weight = constants(taps * channels, 0.5f),
        .bias = bias ? constants(channels) : nullptr,
        .taps = taps,
        .channels = channels,
        .state = state};
  }
  GatedNorm gate(GateForm form, int64_t group, int64_t weights) {
    return {
        .gate = form,
        .weight = constants(weights, 0.2f, 1),
        .group = group,
        .eps = 1e-3f};
  }

  static constexpr int64_t kTokens = 40;

 private:
  std::vector<float> numbers(int64_t count, float scale) {
    std::normal_distribution<float> normal(0, scale);
    std::vector<float> out(static_cast<size_t>(count));
    for (float& value : out) {
      value = normal(random_);
    }
    return out;
  }

  Backend& backend_;
  const Step& step_;
  std::mt19937 random_;
  std::vector<std::unique_ptr<Tensor>> inputs_;
  std::vector<std::unique_ptr<Constants>> constants_;
  std::vector<std::unique_ptr<Norm>> norms_;
};

struct Case {
  const char* name;
  Recurrence (*make)(Parts& parts);
};

constexpr int64_t kState = 60000;  // enough for all of them

Recurrence gated_delta(Parts& parts, bool by_channel, int64_t value_dim) {
  GatedDelta op{.key_heads = 2, .value_heads = 4, .key_dim = 9};
  op.value_dim = value_dim;
  int64_t pair = 2 * value_dim, stride = 18 + 2 * pair;
  op.projection = parts.input(2 * stride + 8);
  op.q = {0, stride};
  op.k = {9, stride};
  op.v = {18, stride};
  op.gate_columns = {18 + pair, stride};
  op.gate = op.projection;
  op.beta_columns = {2 * stride, 4};
  op.decay_by_channel = by_channel;
  op.decay = by_channel ? parts.input(36) : op.projection;
  op.decay_columns =
      by_channel ? HeadColumns{0, 18} : HeadColumns{2 * stride + 2, 4};
  op.state = 3;
  op.convolution =
      parts.convolution(4, 36 + 4 * value_dim, 3 + 36 * value_dim, false);
  op.a = parts.rates(by_channel ? 36 : 4);
  op.dt_bias = parts.constants(by_channel ? 36 : 4);
  op.beta_scale = by_channel ? 1 : 2;
  op.norm = parts.gate(
      by_channel ? GateForm::sigmoid_of_norm : GateForm::silu_of_norm,
      value_dim,
      value_dim);
  return op;
}

Recurrence state_space(
    Parts& parts, GateForm form, int groups, int64_t head_dim) {
  StateSpaceDual op{.heads = 4, .groups = groups, .head_dim = head_dim};
  op.state_size = 6;
  int64_t inner = 4 * head_dim, channels = inner + 12 * groups;
  op.projection = parts.input(inner + channels + 4);
  op.convolution = parts.convolution(3, channels, inner * 6);
  op.a = parts.rates(4);
  op.d = parts.constants(4);
  op.dt_bias = parts.constants(4);
  op.dt_min = 0.1f;
  op.dt_max =
      form == GateForm::silu ? std::numeric_limits<float>::infinity() : 1.5f;
  op.dt_scale = 0.8f;
  op.z_scale = 1.3f;
  op.norm = parts.gate(form, inner / groups, inner);
  return op;
}

Recurrence rwkv7(Parts& parts, bool first_layer) {
  Rwkv7 op{.heads = 3, .head_dim = 20, .eps = 64e-5f, .state = 5};
  for (const Tensor** input : {&op.r, &op.w, &op.k, &op.v, &op.a, &op.g}) {
    *input = parts.input(60);
  }
  if (!first_layer) {
    op.v_first = parts.input(60);
    op.v_mix = parts.input(60);
  }
  for (const Constants** numbers :
       {&op.k_k, &op.k_a, &op.r_k, &op.norm_weight, &op.norm_bias}) {
    *numbers = parts.constants(60);
  }
  return op;
}

Recurrence short_convolution(
    Parts& parts, ConvolutionForm form, int64_t channels, int taps) {
  ShortConvolution op{.form = form};
  bool gated = form == ConvolutionForm::gated;
  op.x = parts.input(gated ? 3 * channels : channels + 12);
  op.first = gated ? 0 : 7;
  op.convolution = parts.convolution(taps, channels, 2, !gated);
  return op;
}

Recurrence selective_scan(Parts& parts, bool norms) {
  SelectiveScan op{.z_first = 3, .channels = 83, .state_size = 5, .state = 1};
  op.x = parts.input(83);
  op.dt = parts.input(83);
  op.bc = parts.input(10);
  op.z = parts.input(90);
  op.a = parts.rates(5 * 83);
  op.d = parts.constants(83);
  op.b_norm = norms ? parts.norm(5) : nullptr;
  op.c_norm = norms ? parts.norm(5) : nullptr;
  return op;
}

Recurrence rg_lru(Parts& parts) {
  RealGatedRecurrence op{.blocks = 3, .width = 63};
  op.projection = parts.input(126);
  op.convolution = parts.convolution(4, 63, 63);
  op.input_weight = parts.constants(63 * 21, 0.3f);
  op.input_bias = parts.constants(63);
  op.recurrent_weight = parts.constants(63 * 21, 0.3f);
  op.recurrent_bias = parts.constants(63);
  op.decay = parts.rates(63);
  return op;
}

Recurrence lightning(Parts& parts) {
  LightningAttention op{.heads = 3, .head_dim = 21};
  op.projection = parts.input(4 * 63);
  op.decay = parts.constants(3, 0.05f, 0.7f);
  op.norm = parts.gate(GateForm::sigmoid_of_norm, 63, 63);
  return op;
}

const std::vector<Case>& cases() {
  using F = ConvolutionForm;
  static const std::vector<Case> list = {
      {"Convolution",
       [](Parts& p) { return short_convolution(p, F::silu, 300, 4); }},
      {"GatedConvolution",
       [](Parts& p) { return short_convolution(p, F::gated, 37, 3); }},
      {"ReplacedColumns",
       [](Parts& p) { return short_convolution(p, F::replaced, 21, 2); }},
      {"SelectiveScan", [](Parts& p) { return selective_scan(p, false); }},
      {"SelectiveScanNorms", [](Parts& p) { return selective_scan(p, true); }},
      {"StateSpace",
       [](Parts& p) { return state_space(p, GateForm::norm_of_gated, 2, 12); }},
      {"StateSpaceWide",
       [](Parts& p) { return state_space(p, GateForm::silu, 1, 150); }},
      {"StateSpaceNormFirst",
       [](Parts& p) { return state_space(p, GateForm::silu_of_norm, 1, 16); }},
      {"GatedDelta", [](Parts& p) { return gated_delta(p, false, 12); }},
      {"GatedDeltaWide", [](Parts& p) { return gated_delta(p, false, 100); }},
      {"GatedDeltaByChannel",
       [](Parts& p) { return gated_delta(p, true, 35); }},
      {"RgLru", rg_lru},
      {"Lightning", lightning},
      {"TokenShift",
       [](Parts& p) -> Recurrence {
         return TokenShift{.x = p.input(33), .state = 4};
       }},
      {"ChannelBlend",
       [](Parts& p) -> Recurrence {
         const Tensor* x = p.input(33);
         return ChannelBlend{x, p.input(33), p.constants(33)};
       }},
      {"Rwkv7First", [](Parts& p) { return rwkv7(p, true); }},
      {"Rwkv7", [](Parts& p) { return rwkv7(p, false); }},
  };
  return list;
}

// Rows of a step that belong to one sequence: tokens follow from the position.
struct Piece {
  int sequence;
  int64_t position;
  int rows;
  bool prompt = true;
};

using Outputs = std::map<std::pair<int, int64_t>, std::vector<float>>;

Outputs run(
    Backend& backend,
    size_t index,
    const std::vector<std::vector<Piece>>& steps) {
  auto cache = backend.make_kv_cache(
      {.layers = {{.state = 1}, {.state = kState}}, .dtype = DType::f32});
  cache->reserve_states(3);
  cache->clear_state(0);
  cache->clear_state(2);
  Outputs outputs;
  for (const std::vector<Piece>& pieces : steps) {
    Step step;
    for (const Piece& piece : pieces) {
      step.segments.push_back(
          {.first_row = step.num_rows(),
           .num_rows = piece.rows,
           .position = piece.position,
           .prompt = piece.prompt,
           .state = piece.sequence});
      for (int row = 0; row < piece.rows; ++row) {
        step.tokens.push_back(
            int32_t(10 * piece.sequence + piece.position + row));
      }
      step.num_prompt_rows += piece.prompt ? piece.rows : 0;
    }
    Parts parts(backend, step, index);
    Recurrence op = cases()[index].make(parts);
    Tensor y = ops::recurrence(backend, step, op, *cache, 1);
    std::vector<float> flat(size_t(y.rows() * y.cols()));
    backend.read(y, flat.data());
    for (const Segment& segment : step.segments) {
      for (int row = 0; row < segment.num_rows; ++row) {
        auto from = flat.begin() + (segment.first_row + row) * y.cols();
        outputs[{segment.state, segment.position + row}] = {
            from, from + y.cols()};
      }
    }
  }
  return outputs;
}

// Sequences in slots 0 and 2: prompts of 9 and 18 tokens, then two more each.
const std::vector<std::vector<Piece>> kTogether = {
    {{0, 0, 9}, {2, 0, 18}},
    {{0, 9, 1, false}, {2, 18, 1, false}},
    {{0, 10, 1, false}, {2, 19, 1, false}}};
const std::vector<std::vector<Piece>> kCut = {
    {{2, 0, 1}},
    {{2, 1, 4}, {0, 0, 2}},
    {{0, 2, 7}, {2, 5, 13}},
    {{2, 18, 1, false}},
    {{0, 9, 1, false}, {2, 19, 1, false}},
    {{0, 10, 1, false}}};

void expect_near(const Outputs& have, const Outputs& want, const char* name) {
  ASSERT_EQ(have.size(), want.size());
  for (const auto& [place, row] : want) {
    const std::vector<float>& other = have.at(place);
    ASSERT_EQ(other.size(), row.size()) << name;
    for (size_t c = 0; c < row.size(); ++c) {
      ASSERT_NEAR(other[c], row[c], 2e-5 * (1 + std::fabs(row[c])))
          << name << ", sequence " << place.first << ", position "
          << place.second << ", column " << c;
    }
  }
}

TEST(Recurrence, CpuFollowsTheFormulasHoweverARunIsCut) {
  auto reference = testing::make_reference_backend();
  for (Isa isa : supported_isas()) {
    for (int threads : {1, 3}) {
      auto backend = cpu_backend(isa, threads);
      for (size_t i = 0; i < cases().size(); ++i) {
        SCOPED_TRACE(cat(cases()[i].name, " on ", name_of(isa)));
        Outputs together = run(*backend, i, kTogether);
        expect_near(together, run(*reference, i, kTogether), cases()[i].name);
        EXPECT_EQ(together, run(*backend, i, kCut));
      }
    }
  }
}

TEST(Recurrence, GraphFollowsTheFormulas) {
  auto backend = testing::graph_backend();
  auto reference = testing::make_reference_backend();
  for (size_t i = 0; i < cases().size(); ++i) {
    SCOPED_TRACE(cases()[i].name);
    Outputs want = run(*reference, i, kTogether);
    expect_near(run(*backend, i, kTogether), want, cases()[i].name);
    expect_near(run(*backend, i, kCut), want, cases()[i].name);
  }
}

// Sequences of several blocks, one, and a part of one, alone and together.
TEST(Recurrence, LightningBlocksReadWholeSequences) {
  auto run_blocks = [](Backend& backend, const std::vector<int>& lengths) {
    auto cache =
        backend.make_kv_cache({.layers = {{.state = 1}}, .dtype = DType::f32});
    cache->reserve_states(int(lengths.size()));
    Step step;
    for (int length : lengths) {
      step.segments.push_back(
          {.first_row = step.num_rows(),
           .num_rows = length,
           .state = int32_t(step.segments.size())});
      for (int row = 0; row < length; ++row) {
        step.tokens.push_back(length + row);
      }
    }
    step.num_prompt_rows = step.num_rows();
    Parts parts(backend, step, 5);
    LightningBlocks op{.heads = 3, .head_dim = 21, .size = 6};
    op.projection = parts.input(4 * 63);
    op.query_decay = parts.constants(18);
    op.key_decay = parts.constants(18);
    op.inside = parts.constants(108);
    op.block_decay = parts.constants(3, 0.2f, 0.8f);
    op.norm = parts.gate(GateForm::sigmoid_of_norm, 63, 63);
    Tensor y = ops::recurrence(backend, step, op, *cache, 0);
    std::vector<float> flat(size_t(y.rows() * y.cols()));
    backend.read(y, flat.data());
    return flat;
  };
  const std::vector<int> lengths = {20, 6, 6, 3, 1};
  auto reference = testing::make_reference_backend();
  std::vector<float> want = run_blocks(*reference, lengths);
  auto expect_wanted = [&](const std::vector<float>& have) {
    ASSERT_EQ(have.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_NEAR(have[i], want[i], 2e-5 * (1 + std::fabs(want[i]))) << i;
    }
  };
  expect_wanted(run_blocks(*testing::graph_backend(), lengths));
  for (Isa isa : supported_isas()) {
    for (int threads : {1, 3}) {
      SCOPED_TRACE(cat(name_of(isa), ", ", threads, " threads"));
      auto backend = cpu_backend(isa, threads);
      std::vector<float> together = run_blocks(*backend, lengths), alone;
      expect_wanted(together);
      for (int length : lengths) {
        std::vector<float> rows = run_blocks(*backend, {length});
        alone.insert(alone.end(), rows.begin(), rows.end());
      }
      EXPECT_EQ(alone, together);
    }
  }
}

TEST(Recurrence, StatesAreCopiedAndCleared) {
  std::vector<std::unique_ptr<Backend>> backends;
  backends.push_back(cpu_backend(Isa::portable, 1));
  backends.push_back(testing::graph_backend());
  for (auto& backend : backends) {
    auto cache =
        backend->make_kv_cache({.layers = {{.state = 7}}, .dtype = DType::f32});
    EXPECT_EQ(cache->spec().bytes_per_state(), 28);
    cache->reserve_states(2);
    ASSERT_GE(cache->num_states(), 2);
    Step step{.tokens = {3}, .num_prompt_rows = 1};
    step.segments = {{.num_rows = 1, .state = 0}};
    auto shifted = [&](int32_t slot) {
      step.segments[0].state = slot;
      Parts parts(*backend, step, 1);
      TokenShift op{.x = parts.input(7)};
      std::vector<float> out(7);
      backend->read(ops::recurrence(*backend, step, op, *cache, 0), out.data());
      return out;
    };
    std::vector<float> first = shifted(0);  // 0 - x
    EXPECT_NE(first[0], 0);
    cache->copy_state(0, 1);
    EXPECT_EQ(shifted(1), std::vector<float>(7));  // x - x
    cache->reserve_states(9);
    EXPECT_EQ(shifted(1), std::vector<float>(7));
    cache->clear_state(1);
    EXPECT_EQ(shifted(1), first);

    auto* copies = dynamic_cast<StateCopies*>(cache.get());
    ASSERT_NE(copies, nullptr);
    ASSERT_GE(copies->state_bytes(), 28u);
    std::vector<std::byte> saved(copies->state_bytes());
    copies->save_state(1, saved.data());
    cache->clear_state(1);
    copies->load_state(0, saved.data());
    EXPECT_EQ(shifted(0), std::vector<float>(7));
    EXPECT_EQ(shifted(1), first);
    EXPECT_THROW(copies->save_state(1000, saved.data()), ShapeError);
    EXPECT_THROW(copies->load_state(-1, saved.data()), ShapeError);
    EXPECT_THROW(cache->copy_state(0, 1000), ShapeError);
    EXPECT_THROW(cache->clear_state(-1), ShapeError);
  }
}

TEST(Recurrence, RefusesWhatDoesNotFit) {
  auto backend = testing::make_reference_backend();
  auto cache =
      backend->make_kv_cache({.layers = {{.state = 20}}, .dtype = DType::f32});
  cache->reserve_states(1);
  Step step{.tokens = {0}, .num_prompt_rows = 1};
  step.segments = {{.num_rows = 1, .state = 0}};
  Parts parts(*backend, step, 1);
  auto summary = [&](const Recurrence& op) {
    try {
      ops::recurrence(*backend, step, op, *cache, 0);
    } catch (const ShapeError& error) {
      return error.summary() + ": " + error.why();
    }
    return std::string("accepted");
  };
  const Tensor* x = parts.input(21);
  EXPECT_EQ(
      summary(TokenShift{.x = x}),
      "recurrence: the cache's layer does not fit: values [0, 21) of 20");
  EXPECT_EQ(
      summary(ShortConvolution{
          .x = x, .convolution = parts.convolution(2, 20, 0), .first = 2}),
      "recurrence: x does not fit: [1, 21], expected [1, 22] or more columns");
  EXPECT_EQ(
      summary(ChannelBlend{x, x, parts.constants(5)}),
      "recurrence: mix does not fit: it has 5 values, not 21");
  LightningBlocks blocks{.heads = 1, .head_dim = 5, .size = 2};
  blocks.projection = parts.input(20);
  blocks.query_decay = blocks.key_decay = parts.constants(2);
  blocks.inside = parts.constants(3);
  blocks.block_decay = parts.constants(1);
  blocks.norm = parts.gate(GateForm::sigmoid_of_norm, 5, 5);
  EXPECT_EQ(
      summary(blocks),
      "recurrence: decay inside does not fit: it has 3 values, not 4");
  blocks.inside = parts.constants(4);
  EXPECT_EQ(summary(blocks), "accepted");
  step.segments[0].position = 2;
  EXPECT_EQ(
      summary(blocks),
      "recurrence: the segment's first position does not fit: it has 2, not 0");
  step.segments[0].state = 4;
  EXPECT_EQ(
      summary(TokenShift{.x = parts.input(20)}),
      "recurrence: the sequence has no slot of recurrent state: slot 4 of 1");
}

}  // namespace
}  // namespace mlxcel
