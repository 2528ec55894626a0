#include "ops/matmul_support.h"

#include <cmath>

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

double activation_of(Activation activation, double x) {
  switch (activation) {
    case Activation::none:
      return x;
    case Activation::silu:
      return x / (1 + std::exp(-x));
    case Activation::gelu:
      return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case Activation::gelu_tanh:
      return 0.5 * x *
             (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::relu:
      return std::max(x, 0.0);
    case Activation::relu_squared:
      return std::max(x, 0.0) * std::max(x, 0.0);
    case Activation::xielu:
      break;  // needs numbers: moe_variants_test.cpp
    case Activation::tanh:
      return std::tanh(x);
    case Activation::sigmoid:
      return 1 / (1 + std::exp(-x));
  }
  return x;
}

class MlpOnIsa : public ::testing::TestWithParam<Isa> {};

INSTANTIATE_TEST_SUITE_P(
    Isas, MlpOnIsa, ::testing::ValuesIn(supported_isas()), [](const auto& isa) {
      return std::string(name_of(isa.param));
    });

TEST_P(MlpOnIsa, MatchesF64LoopForEveryActivation) {
  auto context = make_context(GetParam(), 2, DType::f32);
  std::mt19937 random(17);
  int64_t hidden = 72, inner = 109;
  for (bool fused : {false, true}) {
    TestMatrix gate = random_matrix(random, inner, hidden, DType::f32, {});
    TestMatrix up = random_matrix(random, inner, hidden, DType::f32, {});
    TestMatrix down = random_matrix(random, hidden, inner, DType::f32, {});
    std::vector<float> stacked = gate.values;
    stacked.insert(stacked.end(), up.values.begin(), up.values.end());
    MatrixWeight both;
    both.name = "gate_up";
    both.out = 2 * inner;
    both.in = hidden;
    both.weight =
        testing::float_tensor(DType::f32, {2 * inner, hidden}, &stacked);
    LinearWeights pair{.name = "gate_up", .parts = {gate.weight, up.weight}};
    if (fused) {
      pair.parts = {both};
    }
    auto gated_up = cpu::prepare_linear(*context, pair);
    auto plain_up =
        cpu::prepare_linear(*context, {.name = "up", .parts = {gate.weight}});
    auto down_linear =
        cpu::prepare_linear(*context, {.name = "down", .parts = {down.weight}});
    for (Activation activation :
         {Activation::none,
          Activation::silu,
          Activation::gelu,
          Activation::gelu_tanh,
          Activation::relu,
          Activation::relu_squared,
          Activation::tanh,
          Activation::sigmoid}) {
      for (bool gated : {true, false}) {
        for (auto [prompt, rows] : {std::pair(0, 3), {19, 26}}) {
          std::vector<float> x = random_values(random, rows * hidden, 0.3f);
          Tensor residual = make_tensor(*context, rows, x);
          std::vector<float> got = values_of(cpu::mlp(
              *context,
              make_step(prompt, rows),
              make_tensor(*context, rows, x),
              {.up = gated ? gated_up.get() : plain_up.get(),
               .down = down_linear.get(),
               .activation = activation,
               .gated = gated},
              {.residual = &residual}));
          for (int row = 0; row < rows; ++row) {
            std::vector<double> h(static_cast<size_t>(inner));
            for (int64_t i = 0; i < inner; ++i) {
              double g = 0, u = 0;
              for (int64_t k = 0; k < hidden; ++k) {
                double value = x[size_t(row * hidden + k)];
                g += value * gate.values[size_t(i * hidden + k)];
                u += value * up.values[size_t(i * hidden + k)];
              }
              h[size_t(i)] = activation_of(activation, g) * (gated ? u : 1);
            }
            for (int64_t o = 0; o < hidden; ++o) {
              double expected = x[size_t(row * hidden + o)], size = 0;
              for (int64_t i = 0; i < inner; ++i) {
                double product =
                    h[size_t(i)] * down.values[size_t(o * inner + i)];
                expected += product;
                size += std::abs(product);
              }
              ASSERT_NEAR(
                  got[size_t(row * hidden + o)], expected, 4e-6 * size + 1e-5)
                  << "activation " << int(activation) << " gated " << gated
                  << " rows " << rows << " row " << row;
            }
          }
        }
      }
    }
  }
}

TEST_P(MlpOnIsa, SameBitsAloneAndInABatch) {
  auto one = make_context(GetParam(), 1, DType::f16);
  auto two = make_context(GetParam(), 2, DType::f16);
  std::mt19937 random(19);
  int64_t hidden = 192, inner = 320;
  TestMatrix gate =
      random_matrix(random, inner, hidden, DType::f16, affine(4, 32));
  TestMatrix up =
      random_matrix(random, inner, hidden, DType::f16, affine(8, 32));
  TestMatrix down =
      random_matrix(random, hidden, inner, DType::f16, affine(4, 64));
  auto run = [&](cpu::Context& context,
                 int prompt,
                 int rows,
                 const std::vector<float>& x) {
    auto up_linear = cpu::prepare_linear(
        context, {.name = "up", .parts = {gate.weight, up.weight}});
    auto down_linear =
        cpu::prepare_linear(context, {.name = "down", .parts = {down.weight}});
    return values_of(cpu::mlp(
        context,
        make_step(prompt, rows),
        make_tensor(context, rows, x),
        {.up = up_linear.get(), .down = down_linear.get()},
        {}));
  };
  int rows = 40, prompt = 27;
  std::vector<float> x = random_values(random, rows * hidden);
  std::vector<float> all = run(*two, prompt, rows, x);
  for (auto [first, count] :
       {std::pair(0, 1), {26, 1}, {5, 14}, {27, 1}, {39, 1}, {28, 6}}) {
    bool is_prompt = first < prompt;
    std::vector<float> got =
        run(*one,
            is_prompt ? count : 0,
            count,
            {x.begin() + first * hidden, x.begin() + (first + count) * hidden});
    ASSERT_EQ(
        got,
        std::vector<float>(
            all.begin() + first * hidden,
            all.begin() + (first + count) * hidden))
        << first << " " << count;
  }
}

TEST_P(MlpOnIsa, HeadOfSelectedRows) {
  auto context = make_context(GetParam(), 2, DType::f32);
  std::mt19937 random(23);
  int64_t hidden = 64, vocab = 333;
  TestMatrix m =
      random_matrix(random, vocab, hidden, DType::f16, affine(8, 32));
  auto head =
      cpu::prepare_linear(*context, {.name = "lm_head", .parts = {m.weight}});
  int rows = 12;
  std::vector<float> x = random_values(random, rows * hidden);
  Step step = make_step(8, rows);
  step.output_rows = {7, 9, 11};
  for (float softcap : {0.f, 30.f}) {
    Tensor y = cpu::head(
        *context,
        step,
        make_tensor(*context, rows, x),
        {.head = head.get(), .scale = 0.5f, .softcap = softcap});
    ASSERT_EQ(y.rows(), 3);
    ASSERT_EQ(y.cols(), vocab);
    std::vector<float> got = values_of(y);
    for (size_t i = 0; i < 3; ++i) {
      for (int64_t o = 0; o < vocab; ++o) {
        double sum = 0;
        for (int64_t k = 0; k < hidden; ++k) {
          sum += double(x[size_t(step.output_rows[i] * hidden + k)]) *
                 m.values[size_t(o * hidden + k)];
        }
        sum *= 0.5;
        if (softcap != 0) {
          sum = softcap * std::tanh(sum / softcap);
        }
        ASSERT_NEAR(got[i * size_t(vocab) + size_t(o)], sum, 1e-4);
      }
    }
  }
}

TEST_P(MlpOnIsa, EmbeddingReadsRowsAndAddsTerms) {
  auto context = make_context(GetParam(), 2, DType::f16);
  std::mt19937 random(29);
  int64_t hidden = 96, vocab = 50, rank = 3;
  for (bool rank_first : {false, true}) {
    TestMatrix m =
        random_matrix(random, vocab, hidden, DType::bf16, affine(4, 32));
    LowRankTerm term;
    term.rank = rank;
    term.rows = hidden;
    term.scale = 2;
    term.rank_first = rank_first;
    std::vector<float> a = random_values(random, vocab * rank);
    std::vector<float> b = random_values(random, rank * hidden);
    term.a = testing::float_tensor(
        DType::f16, rank_first ? Shape{rank, vocab} : Shape{vocab, rank}, &a);
    term.b = testing::float_tensor(
        DType::f16, rank_first ? Shape{hidden, rank} : Shape{rank, hidden}, &b);
    auto table = cpu::prepare_embedding(*context, {m.weight, {term}});
    for (int rows : {4, 40}) {
      Step step = make_step(rows - 1, rows);
      for (int32_t& token : step.tokens) {
        token = int32_t(random() % uint32_t(vocab));
      }
      std::vector<float> scales = {0.5f};
      step.segments[1].adapter_scales = scales;  // the last row alone
      std::vector<float> got = values_of(cpu::embed(*context, step, *table, 3));
      for (int row = 0; row < rows; ++row) {
        int64_t token = step.tokens[size_t(row)];
        for (int64_t i = 0; i < hidden; ++i) {
          double expected = m.values[size_t(token * hidden + i)];
          for (int64_t r = 0; r < rank && row == rows - 1; ++r) {
            expected +=
                0.5 * 2 *
                a[size_t(rank_first ? r * vocab + token : token * rank + r)] *
                b[size_t(rank_first ? i * rank + r : r * hidden + i)];
          }
          ASSERT_NEAR(got[size_t(row * hidden + i)], 3 * expected, 1e-4);
        }
      }
    }
  }
}

}  // namespace
}  // namespace mlxcel
