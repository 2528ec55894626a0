// The mixture of experts on the CPU against plain f64 loops.
#include "core/error.h"
#include "ops/matmul_support.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <gmock/gmock.h>
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

constexpr int kExperts = 7, kBest = 3;
constexpr int64_t kHidden = 96, kInner = 64;

using Row = std::vector<double>;

Row product(const TestMatrix& matrix, const Row& x) {
  Row out(size_t(matrix.weight.out));
  for (size_t o = 0; o < out.size(); ++o) {
    out[o] = std::inner_product(
        x.begin(),
        x.end(),
        matrix.values.begin() + int64_t(o) * matrix.weight.in,
        0.0);
  }
  return out;
}

struct Expert {
  TestMatrix gate, up, down;

  Row apply(const Row& x) const {
    Row inner = product(gate, x), other = product(up, x);
    for (size_t i = 0; i < inner.size(); ++i) {
      inner[i] *= other[i] / (1 + std::exp(-inner[i]));
    }
    return product(down, inner);
  }
};

Expert random_expert(std::mt19937& random, DType dtype, Quant quant) {
  return {
      random_matrix(random, kInner, kHidden, dtype, quant),
      random_matrix(random, kInner, kHidden, dtype, quant),
      random_matrix(random, kHidden, kInner, dtype, quant)};
}

// The weights of a mixture with a shared expert, and the op prepared from them.
struct Mixture {
  Mixture(std::mt19937& random, DType dtype, Quant quant)
      : router(random_matrix(random, kExperts, kHidden, dtype, {})),
        shared_gate(random_matrix(random, 1, kHidden, dtype, {})),
        shared(random_expert(random, dtype, quant)) {
    for (int e = 0; e < kExperts; ++e) {
      experts.push_back(random_expert(random, dtype, quant));
    }
  }

  // The experts of a row, best first, with their weights.
  std::vector<std::pair<double, int>> chosen(
      const Row& x, Routing routing) const {
    Row logits = product(router, x);
    std::vector<std::pair<double, int>> out;
    double sum = 0;
    for (int e = 0; e < kExperts; ++e) {
      out.emplace_back(std::exp(logits[size_t(e)]), e);
      sum += out.back().first;
    }
    std::sort(out.rbegin(), out.rend());
    out.resize(kBest);
    if (routing.shares == Shares::renormalized) {
      sum = 0;
      for (const auto& entry : out) {
        sum += entry.first;
      }
    }
    for (auto& entry : out) {
      entry.first /= sum;
    }
    return out;
  }

  Row apply(const Row& x, Routing routing, bool with_shared) const {
    Row out(size_t(kHidden), 0.0);
    auto add = [&](double factor, const Row& row) {
      for (size_t i = 0; i < out.size(); ++i) {
        out[i] += factor * row[i];
      }
    };
    for (auto [weight, e] : chosen(x, routing)) {
      add(weight, experts[size_t(e)].apply(x));
    }
    if (with_shared) {
      add(1 / (1 + std::exp(-product(shared_gate, x)[0])), shared.apply(x));
    }
    return out;
  }

  TestMatrix router, shared_gate;
  Expert shared;
  std::vector<Expert> experts;
};

struct Prepared {
  Prepared(cpu::Context& context, const Mixture& from, bool with_shared) {
    auto one = [&](const TestMatrix& m) {
      return cpu::prepare_linear(context, {.name = "one", .parts = {m.weight}});
    };
    router = one(from.router);
    ExpertWeights ups{.name = "up"}, downs{.name = "down"};
    for (const Expert& e : from.experts) {
      ups.experts.push_back(
          {.name = "up", .parts = {e.gate.weight, e.up.weight}});
      downs.experts.push_back({.name = "down", .parts = {e.down.weight}});
    }
    up = cpu::prepare_experts(context, ups);
    down = cpu::prepare_experts(context, downs);
    weights = {
        .router = router.get(),
        .experts_per_token = kBest,
        .up = up.get(),
        .down = down.get()};
    if (with_shared) {
      shared_gate = one(from.shared_gate);
      shared_up = cpu::prepare_linear(
          context,
          {.name = "shared",
           .parts = {from.shared.gate.weight, from.shared.up.weight}});
      shared_down = one(from.shared.down);
      weights.shared = {.up = shared_up.get(), .down = shared_down.get()};
      weights.shared_gate = shared_gate.get();
    }
  }

  std::unique_ptr<Linear> router, shared_gate, shared_up, shared_down;
  std::unique_ptr<Experts> up, down;
  MoeWeights weights;
};

class MoeOnIsa : public ::testing::TestWithParam<Isa> {};

INSTANTIATE_TEST_SUITE_P(
    Isas,
    MoeOnIsa,
    ::testing::ValuesIn(supported_isas()),
    [](const auto& info) { return std::string(name_of(info.param)); });

TEST_P(MoeOnIsa, MatchesF64Loop) {
  auto context = make_context(GetParam(), 2, DType::f32);
  std::mt19937 random(31);
  for (Quant quant : {Quant{}, affine(4, 32)}) {
    Mixture mixture(random, DType::f32, quant);
    for (bool with_shared : {false, true}) {
      Prepared prepared(*context, mixture, with_shared);
      for (Routing routing :
           {Routing{}, Routing{.shares = Shares::renormalized}}) {
        prepared.weights.routing = routing;
        for (auto [prompt, rows] : {std::pair(0, 1), {0, 9}, {23, 30}}) {
          std::vector<float> x = random_values(random, rows * kHidden, 0.2f);
          Tensor residual = make_tensor(*context, rows, x);
          std::vector<float> got = values_of(cpu::moe(
              *context,
              make_step(prompt, rows),
              make_tensor(*context, rows, x),
              prepared.weights,
              {.residual = &residual, .output_scale = 0.5f}));
          for (int row = 0; row < rows; ++row) {
            auto begin = x.begin() + row * kHidden;
            Row expected = mixture.apply(
                Row(begin, begin + kHidden), routing, with_shared);
            double size = 0;
            for (double value : expected) {
              size = std::max(size, std::abs(value));
            }
            for (int64_t i = 0; i < kHidden; ++i) {
              ASSERT_NEAR(
                  got[size_t(row * kHidden + i)],
                  double(begin[i]) + 0.5 * expected[size_t(i)],
                  1e-4 * size + 1e-5)
                  << "row " << row << " of " << rows << ", shared "
                  << with_shared << ", " << to_string(quant);
            }
          }
        }
      }
    }
  }
}

TEST_P(MoeOnIsa, SameBitsAloneAndInABatch) {
  auto one = make_context(GetParam(), 1, DType::f16);
  auto two = make_context(GetParam(), 2, DType::f16);
  std::mt19937 random(37);
  Mixture mixture(random, DType::f16, affine(4, 32));
  Prepared in_one(*one, mixture, true), in_two(*two, mixture, true);
  std::vector<float> weight(size_t(kHidden), 1.f);
  NormWeights norm_weights{.size = kHidden, .eps = 1e-5f};
  cpu::CpuNorm norm(norm_weights, GetParam());
  int rows = 40, prompt = 27;
  std::vector<float> x = random_values(random, rows * kHidden);
  auto run = [&](cpu::Context& context,
                 const Prepared& prepared,
                 int prompt_rows,
                 int first,
                 int count) {
    std::vector<float> part(
        x.begin() + first * kHidden, x.begin() + (first + count) * kHidden);
    return values_of(cpu::moe(
        context,
        make_step(prompt_rows, count),
        make_tensor(context, count, part),
        prepared.weights,
        {.norm = &norm, .output_norm = &norm}));
  };
  std::vector<float> all = run(*two, in_two, prompt, 0, rows);
  for (auto [first, count] :
       {std::pair(0, 1), {26, 1}, {5, 14}, {27, 1}, {39, 1}, {28, 6}}) {
    ASSERT_EQ(
        run(*one, in_one, first < prompt ? count : 0, first, count),
        std::vector<float>(
            all.begin() + first * kHidden,
            all.begin() + (first + count) * kHidden))
        << first << " " << count;
  }
}

TEST(Moe, ExpertsOfDifferentShapesAreRefused) {
  auto context = make_context(supported_isas().front(), 1, DType::f32);
  std::mt19937 random(41);
  TestMatrix a = random_matrix(random, 8, 32, DType::f32, {});
  TestMatrix b = random_matrix(random, 9, 32, DType::f32, {});
  try {
    cpu::prepare_experts(
        *context,
        {.name = "layers.0.moe.experts.down",
         .experts = {
             {.name = "a", .parts = {a.weight}},
             {.name = "b", .parts = {b.weight}}}});
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_THAT(
        error.what(),
        ::testing::HasSubstr("expert 1 [9, 32], expert 0 [8, 32]"));
  }
}

}  // namespace
}  // namespace mlxcel
