// Many adapters in one step, on inputs and outputs long enough that threads
// share the terms.
#include "ops/matmul_support.h"

#include <array>

#include <gtest/gtest.h>

namespace mlxcel {
namespace {

using testing::affine;
using testing::make_context;
using testing::make_step;
using testing::make_tensor;
using testing::random_matrix;
using testing::random_values;
using testing::TestMatrix;
using testing::values_of;

constexpr int kAdapters = 8;
constexpr int64_t kIn = 2304, kFirst = 704, kSecond = 330;

struct Term {
  LowRankTerm weights;
  std::vector<float> a, b;

  // scale * (B A x)[o]
  double at(const float* x, int64_t in, int64_t o) const {
    double sum = 0;
    for (int64_t r = 0; r < weights.rank; ++r) {
      double t = 0;
      for (int64_t k = 0; k < in; ++k) {
        size_t index =
            size_t(weights.rank_first ? r * in + k : k * weights.rank + r);
        t += double(a[index]) * x[k];
      }
      size_t index = size_t(
          weights.rank_first ? o * weights.rank + r : r * weights.rows + o);
      sum += t * b[index];
    }
    return sum * weights.scale;
  }
};

Term random_term(
    std::mt19937& random,
    int adapter,
    int64_t in,
    int64_t row_begin,
    int64_t rows) {
  Term term;
  LowRankTerm& w = term.weights;
  w.adapter = adapter;
  w.row_begin = row_begin;
  w.rows = rows;
  w.rank = std::array{16, 3, 8, 1, 20, 4, 16, 64}[size_t(adapter)];
  w.scale = 0.5f;
  w.rank_first = random() % 2 == 1;
  DType dtype = std::array{DType::f16, DType::bf16, DType::f32}[random() % 3];
  term.a = random_values(random, in * w.rank, 0.05f);
  term.b = random_values(random, w.rank * rows, 0.2f);
  w.a = testing::float_tensor(
      dtype, w.rank_first ? Shape{w.rank, in} : Shape{in, w.rank}, &term.a);
  w.b = testing::float_tensor(
      dtype, w.rank_first ? Shape{rows, w.rank} : Shape{w.rank, rows}, &term.b);
  return term;
}

// Row r of `x` alone, with the scales and the role that it has in `step`.
Step alone(const Step& step, size_t segment) {
  Step out = make_step(step.segments[segment].prompt ? 1 : 0, 1);
  out.segments[0].adapter_scales = step.segments[segment].adapter_scales;
  return out;
}

class LiveTermsOnIsa : public ::testing::TestWithParam<Isa> {};

INSTANTIATE_TEST_SUITE_P(
    Isas,
    LiveTermsOnIsa,
    ::testing::ValuesIn(supported_isas()),
    [](const auto& isa) { return std::string(name_of(isa.param)); });

// Adapter s of sequence s; the last two share one and use another besides.
std::vector<std::vector<float>> scales_of(size_t sequences) {
  std::vector<std::vector<float>> scales(sequences);
  for (size_t s = 0; s < sequences; ++s) {
    scales[s].assign(kAdapters, 0);
    scales[s][s % kAdapters] = 1.25f;
    if (s + 2 >= sequences) {
      scales[s][2] = -0.5f;
      scales[s][5] = 0.75f;
    }
  }
  return scales;
}

TEST_P(LiveTermsOnIsa, MatchF64AndTheRowAloneOnAnyNumberOfThreads) {
  std::mt19937 random(31);
  TestMatrix first =
      random_matrix(random, kFirst, kIn, DType::f16, affine(4, 64));
  TestMatrix second =
      random_matrix(random, kSecond, kIn, DType::f16, affine(8, 64));
  std::vector<Term> terms;
  LinearWeights weights{.name = "qkv", .parts = {first.weight, second.weight}};
  LinearWeights base_weights = weights;
  for (int adapter = 0; adapter < kAdapters; ++adapter) {
    terms.push_back(random_term(random, adapter, kIn, 0, kFirst));
    if (adapter % 3 != 1) {
      terms.push_back(random_term(random, adapter, kIn, kFirst, kSecond));
    }
  }
  for (const Term& term : terms) {
    weights.terms.push_back(term.weights);
  }
  for (auto [prompt, rows] : {std::pair(0, 1), {0, 3}, {0, 10}, {5, 13}}) {
    std::vector<float> x = random_values(random, rows * kIn);
    Step step = make_step(prompt, rows);
    auto scales = scales_of(step.segments.size());
    for (size_t s = 0; s < scales.size(); ++s) {
      step.segments[s].adapter_scales = scales[s];
    }
    std::vector<float> one_thread;
    for (int threads : {1, 2, 5}) {
      auto context = make_context(GetParam(), threads, DType::f16);
      auto linear = cpu::prepare_linear(*context, weights);
      auto base = cpu::prepare_linear(*context, base_weights);
      Tensor input = make_tensor(*context, rows, x);
      std::vector<float> got =
          values_of(cpu::linear(*context, step, input, *linear, {}));
      if (threads > 1) {
        ASSERT_EQ(got, one_thread) << threads << " threads, " << rows;
        continue;
      }
      one_thread = got;
      std::vector<float> plain =
          values_of(cpu::linear(*context, step, input, *base, {}));
      int64_t out = linear->out();
      for (size_t s = 0; s < step.segments.size(); ++s) {
        int row = step.segments[s].first_row;
        const float* own = x.data() + row * kIn;
        for (int64_t o = 0; o < out; o += 7) {
          double expected = plain[size_t(row * out + o)];
          for (const Term& term : terms) {
            float scale = scales[s][size_t(term.weights.adapter)];
            int64_t at = o - term.weights.row_begin;
            if (scale != 0 && at >= 0 && at < term.weights.rows) {
              expected += double(scale) * term.at(own, kIn, at);
            }
          }
          ASSERT_NEAR(got[size_t(row * out + o)], expected, 2e-3)
              << row << " " << o;
        }
        if (step.segments[s].num_rows > 1) {
          continue;
        }
        std::vector<float> lone = values_of(cpu::linear(
            *context,
            alone(step, s),
            make_tensor(*context, 1, {own, own + kIn}),
            *linear,
            {}));
        std::vector<float> in_batch(
            got.begin() + row * out, got.begin() + (row + 1) * out);
        ASSERT_EQ(in_batch, lone) << "row " << row << " of " << rows;
      }
    }
  }
}

TEST_P(LiveTermsOnIsa, OfAnMlpAreTheSameAloneAndOnAnyNumberOfThreads) {
  std::mt19937 random(32);
  int64_t hidden = 320, inner = 1088;
  TestMatrix gate =
      random_matrix(random, inner, hidden, DType::bf16, affine(4, 32));
  TestMatrix up =
      random_matrix(random, inner, hidden, DType::bf16, affine(4, 32));
  TestMatrix down =
      random_matrix(random, hidden, inner, DType::bf16, affine(4, 32));
  LinearWeights up_weights{.name = "up", .parts = {gate.weight, up.weight}};
  LinearWeights down_weights{.name = "down", .parts = {down.weight}};
  for (int adapter = 0; adapter < kAdapters; ++adapter) {
    up_weights.terms.push_back(
        random_term(random, adapter, hidden, 0, inner).weights);
    up_weights.terms.push_back(
        random_term(random, adapter, hidden, inner, inner).weights);
    down_weights.terms.push_back(
        random_term(random, adapter, inner, 0, hidden).weights);
  }
  std::vector<float> norm_weight = random_values(random, hidden);
  NormWeights norm_weights{
      .size = hidden,
      .eps = 1e-5f,
      .weight = testing::float_tensor(DType::f32, {hidden}, &norm_weight)};
  for (int rows : {1, 2, 8, 11}) {
    std::vector<float> x = random_values(random, rows * hidden);
    Step step = make_step(0, rows);
    auto scales = scales_of(size_t(rows));
    for (size_t s = 0; s < scales.size(); ++s) {
      step.segments[s].adapter_scales = scales[s];
    }
    std::vector<float> one_thread;
    // More threads than there are groups of outputs: some have none.
    for (int threads : {1, 2, 80}) {
      auto context = make_context(GetParam(), threads, DType::bf16);
      cpu::CpuNorm norm(norm_weights, GetParam());
      auto up_linear = cpu::prepare_linear(*context, up_weights);
      auto down_linear = cpu::prepare_linear(*context, down_weights);
      auto run = [&](const Step& some, const std::vector<float>& values) {
        return values_of(cpu::mlp(
            *context,
            some,
            make_tensor(*context, some.num_rows(), values),
            {.up = up_linear.get(), .down = down_linear.get()},
            {.norm = &norm}));
      };
      std::vector<float> got = run(step, x);
      if (threads > 1) {
        ASSERT_EQ(got, one_thread) << threads << " threads, " << rows;
        continue;
      }
      one_thread = got;
      for (int row = 0; row < rows; ++row) {
        const float* own = x.data() + row * hidden;
        std::vector<float> in_batch(
            got.begin() + row * hidden, got.begin() + (row + 1) * hidden);
        ASSERT_EQ(in_batch, run(alone(step, size_t(row)), {own, own + hidden}))
            << "row " << row << " of " << rows;
      }
    }
  }
}

}  // namespace
}  // namespace mlxcel
