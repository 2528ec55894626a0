// What products fetch for the attention call after them: the lists by hand
// counts, and attention of many rows against a plain loop in double precision,
// with the same bits as alone.
#include "ops/cpu/read_ahead.h"

#include "core/error.h"
#include "matmul_support.h"
#include "ops/cpu/attention.h"
#include "ops/cpu/context.h"
#include "ops/cpu/cpu_linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

namespace mlxcel::cpu {
namespace {

TEST(FetchList, SpreadsItsLinesOverTheOutputs) {
  alignas(64) std::byte memory[64 * 32];
  FetchList list;
  list.add(memory, 64 * 4, 1, 0);
  list.add(memory + 64 * 8, 64, 3, 256);     // a line of each of three rows
  list.add(memory + 64 * 20 + 60, 8, 1, 0);  // across a border: two lines
  EXPECT_EQ(list.lines(), 9);
  list.spread(18);
  list.pass(6, 1, 1);
  EXPECT_EQ(list.lines(), 6);
  list.pass(6, 1, 2);  // half of the work on six outputs
  list.pass(6, 1, 2);
  EXPECT_EQ(list.lines(), 3);
  list.finish();
  EXPECT_EQ(list.lines(), 0);
}

TEST(FetchList, PassesAShareAndForgetsTheRest) {
  alignas(64) std::byte memory[64 * 16];
  FetchList list;
  list.add(memory, 64 * 16, 1, 0);
  list.spread(8, 4);
  list.pass(8, 1, 1);
  EXPECT_EQ(list.lines(), 12);
  list.clear();
  EXPECT_EQ(list.lines(), 0);
  list.add(memory, 64 * 2, 1, 0);
  EXPECT_EQ(list.lines(), 2);
  list.spread(1);
  list.pass(1, 1, 1);
  EXPECT_EQ(list.lines(), 0);
}

TEST(ReadAhead, ExpectsTheCallsOfTheStepBefore) {
  ReadAhead ahead(2);
  ReadAhead::Calls calls;
  ahead.begin_step();
  ahead.during(0, 100, 10);
  EXPECT_EQ(ahead.begin_call(calls, 4, {}), nullptr);
  ahead.during(0, 30, 10);
  ahead.during(0, 50, 10);
  EXPECT_EQ(ahead.begin_call(calls, 7, {128}), nullptr);

  ahead.begin_step();
  const ReadAhead::Call* next = ahead.begin_call(calls, 4, {});
  ASSERT_NE(next, nullptr);
  EXPECT_EQ(next->layer, 7);
  EXPECT_EQ(next->window, Window(128));
  EXPECT_EQ(next->weights, 80);
  EXPECT_EQ(ahead.begin_call(calls, 7, {128}), nullptr);

  // A step that makes another call is what the next one goes by.
  ahead.begin_step();
  ahead.begin_call(calls, 4, {});
  ahead.during(0, 10, 10);
  ahead.begin_call(calls, 9, {});
  ahead.begin_step();
  next = ahead.begin_call(calls, 4, {});
  ASSERT_NE(next, nullptr);
  EXPECT_EQ(next->layer, 9);
  EXPECT_EQ(next->weights, 10);
}

TEST(ReadAhead, SpreadsAListOverTheProductsInBetween) {
  alignas(64) static std::byte memory[64 * 100];
  ReadAhead ahead(2);
  ahead.begin_step();
  FetchList& list = ahead.start(1, 400);
  list.add(memory, sizeof(memory), 1, 0);
  EXPECT_EQ(ahead.during(0, 100, 8), nullptr);  // the other thread has none
  FetchList* during = ahead.during(1, 100, 8);
  ASSERT_EQ(during, &list);
  during->pass(8, 1, 1);
  EXPECT_EQ(list.lines(), 75);
  EXPECT_EQ(ahead.during(1, 100, 0), nullptr);  // no outputs of this one
  ahead.during(1, 200, 8)->pass(8, 1, 1);
  EXPECT_EQ(list.lines(), 0);
  EXPECT_EQ(ahead.during(1, 100, 8), nullptr);
  ahead.start(1, 400).add(memory, 64, 1, 0);
  ahead.begin_step();
  EXPECT_EQ(ahead.during(1, 100, 8), nullptr);
}

constexpr int kHeads = 6, kKvHeads = 2, kHeadDim = 32;
constexpr int kColumns = (kHeads + 2 * kKvHeads) * kHeadDim;
constexpr int kWidth = kHeads * kHeadDim;
constexpr int kLayers = 3;
constexpr int kSteps = 4;
const Window kWindows[kLayers] = {{}, {70}, {}};

struct Sequence {
  int prompt;
  int steps;                        // generated rows
  std::vector<float> qkv[kLayers];  // [positions, kColumns]
  std::vector<int32_t> blocks;
};

// One row of a layer in double precision.
std::vector<double> reference(const Sequence& s, int layer, int position) {
  auto row = [&](int p) { return s.qkv[layer].data() + p * kColumns; };
  std::vector<double> out(kWidth);
  int64_t first = kWindows[layer].first(position);
  for (int head = 0; head < kHeads; ++head) {
    int kv = head / (kHeads / kKvHeads);
    const float* q = row(position) + head * kHeadDim;
    std::vector<double> weights;
    double sum = 0;
    for (int64_t p = first; p <= position; ++p) {
      const float* k = row(int(p)) + (kHeads + kv) * kHeadDim;
      double score = 0;
      for (int i = 0; i < kHeadDim; ++i) {
        score += double(q[i]) * double(k[i]);
      }
      weights.push_back(std::exp(score / std::sqrt(double(kHeadDim))));
      sum += weights.back();
    }
    for (int64_t p = first; p <= position; ++p) {
      const float* v = row(int(p)) + (kHeads + kKvHeads + kv) * kHeadDim;
      for (int i = 0; i < kHeadDim; ++i) {
        out[size_t(head * kHeadDim + i)] +=
            weights[size_t(p - first)] / sum * double(v[i]);
      }
    }
  }
  return out;
}

// A model of attention calls with a product before each.
class Model {
 public:
  Model(Isa isa, DType dtype, int threads)
      : context_({.threads = threads, .activation_dtype = dtype}) {
    context_.isa = isa;
    KvCacheSpec spec{
        .layers = {kLayers, {kKvHeads, kHeadDim, kHeadDim}}, .dtype = dtype};
    cache_ = make_kv_cache(spec);
    cache_->reserve(64);
    std::mt19937 random(5);
    LinearWeights weights;
    weights.name = "test";
    weights.parts.push_back(
        testing::random_matrix(
            random,
            96,
            64,
            DType::f16,
            {.mode = QuantMode::affine, .bits = 4, .group_size = 32})
            .weight);
    linear_ = prepare_linear(context_, std::move(weights));
    input_ = testing::random_values(random, 64);
  }

  // A step's rows of all layers: [layer][row, kWidth].
  std::vector<std::vector<float>> step(
      const Step& step,
      const std::vector<Sequence>& all,
      const std::vector<int>& members) {
    context_.ahead->begin_step();
    std::vector<std::vector<float>> results;
    for (int layer = 0; layer < kLayers; ++layer) {
      check_product(step);
      Tensor qkv = context_.make(step.num_rows(), kColumns);
      for (size_t i = 0; i < members.size(); ++i) {
        const Segment& segment = step.segments[i];
        std::memcpy(
            data(qkv) + segment.first_row * kColumns,
            all[size_t(members[i])].qkv[layer].data() +
                segment.position * kColumns,
            size_t(segment.num_rows * kColumns) * sizeof(float));
      }
      AttentionArgs args;
      args.num_heads = kHeads;
      args.num_kv_heads = kKvHeads;
      args.head_dim = kHeadDim;
      args.scale = 1 / std::sqrt(float(kHeadDim));
      args.window = kWindows[layer];
      Tensor y = attention(context_, step, qkv, args, *cache_, layer);
      results.emplace_back(data(y), data(y) + y.rows() * y.cols());
    }
    return results;
  }

  // The members' prompts, or the i-th generated row of each.
  std::vector<std::vector<float>> run(
      const std::vector<Sequence>& all,
      const std::vector<int>& members,
      int generated) {
    Step step;
    int rows = 0;
    for (int member : members) {
      const Sequence& sequence = all[size_t(member)];
      Segment segment;
      segment.first_row = rows;
      segment.prompt = generated < 0;
      segment.num_rows = segment.prompt ? sequence.prompt : 1;
      segment.position = segment.prompt ? 0 : sequence.prompt + generated;
      segment.blocks = sequence.blocks;
      rows += segment.num_rows;
      step.segments.push_back(std::move(segment));
    }
    step.num_prompt_rows = generated < 0 ? rows : 0;
    step.tokens.assign(size_t(rows), 0);
    return this->step(step, all, members);
  }

 private:
  // All its rows are the same, so all results are.
  void check_product(const Step& step) {
    Tensor x = context_.make(step.num_rows(), 64);
    for (int row = 0; row < step.num_rows(); ++row) {
      std::memcpy(data(x) + row * 64, input_.data(), 64 * sizeof(float));
    }
    Tensor y = linear(context_, step, x, *linear_, {});
    if (step.num_prompt_rows > 0) {
      return;
    }
    if (product_.empty()) {
      product_.assign(data(y), data(y) + 96);
    }
    for (int row = 0; row < step.num_rows(); ++row) {
      EXPECT_EQ(
          std::memcmp(data(y) + row * 96, product_.data(), 96 * sizeof(float)),
          0);
    }
  }

  Context context_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<Linear> linear_;
  std::vector<float> input_, product_;
};

std::vector<Sequence> sequences() {
  std::vector<Sequence> all;
  std::mt19937 random(17);
  int next_block = 0;
  for (int prompt : {1, 63, 64, 130, 5, 200, 127, 128, 40, 257, 70, 12}) {
    Sequence sequence;
    sequence.prompt = prompt;
    sequence.steps = prompt == 200 ? 2 : kSteps;  // one that ends early
    for (auto& values : sequence.qkv) {
      values =
          testing::random_values(random, int64_t(prompt + kSteps) * kColumns);
    }
    for (int p = 0; p < prompt + kSteps; p += kKvBlockSize) {
      sequence.blocks.push_back(next_block++);
    }
    all.push_back(std::move(sequence));
  }
  return all;
}

TEST(ReadAhead, AttentionOfManyRowsMatchesTheLoopAndEachAlone) {
  std::vector<Sequence> all = sequences();
  for (Isa isa : supported_isas()) {
    for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      SCOPED_TRACE(cat(name_of(isa), " ", name_of(dtype)));
      // [sequence][step][layer]
      std::vector<std::vector<std::vector<std::vector<float>>>> alone;
      for (int member = 0; member < int(all.size()); ++member) {
        Model model(isa, dtype, 1);
        model.run(all, {member}, -1);
        alone.emplace_back();
        for (int i = 0; i < all[size_t(member)].steps; ++i) {
          alone.back().push_back(model.run(all, {member}, i));
        }
      }
      double tolerance = dtype == DType::f32   ? 3e-5
                         : dtype == DType::f16 ? 4e-3
                                               : 3e-2;
      for (int threads : {1, 2, 3}) {
        Model model(isa, dtype, threads);
        std::vector<int> members(all.size());
        for (size_t i = 0; i < members.size(); ++i) {
          members[i] = int(i);
        }
        model.run(all, members, -1);
        for (int i = 0; i < kSteps; ++i) {
          std::erase_if(
              members, [&](int m) { return all[size_t(m)].steps <= i; });
          auto together = model.run(all, members, i);
          for (int layer = 0; layer < kLayers; ++layer) {
            for (size_t m = 0; m < members.size(); ++m) {
              const Sequence& sequence = all[size_t(members[m])];
              const float* got =
                  together[size_t(layer)].data() + m * size_t(kWidth);
              const auto& lone =
                  alone[size_t(members[m])][size_t(i)][size_t(layer)];
              ASSERT_EQ(
                  std::memcmp(got, lone.data(), kWidth * sizeof(float)), 0)
                  << threads << " threads, sequence " << members[m];
              std::vector<double> wanted =
                  reference(sequence, layer, sequence.prompt + i);
              for (int c = 0; c < kWidth; ++c) {
                ASSERT_NEAR(got[c], wanted[size_t(c)], tolerance);
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace mlxcel::cpu
