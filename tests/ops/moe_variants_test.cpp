// What few families add to MLPs and mixtures, on every instruction set and the
// graph backend against plain loops in double precision.
#include "core/cpu_features.h"
#include "core/error.h"
#include "graph_support.h"
#include "ops/ops.h"
#include "support/models/reference_backend.h"

#include <gmock/gmock.h>

#include <cstdlib>

namespace mlxcel::testing {
namespace {

constexpr int kExperts = 6;
constexpr int64_t kHidden = 40, kInner = 24;

struct Variant {
  std::string name;
  MoeWeights moe;
  bool expert_biases = false, router_bias = false, shared = false;
  bool own_logits = false;
};

std::ostream& operator<<(std::ostream& out, const Variant& variant) {
  return out << variant.name;
}

std::vector<Variant> variants() {
  std::vector<Variant> out;
  auto add = [&](const std::string& name) -> Variant& {
    out.push_back({.name = name, .moe = {.experts_per_token = 2}});
    return out.back();
  };
  Variant& plain = add("plain_experts");
  plain.moe.gated = false;
  plain.moe.activation = Activation::relu_squared;
  plain.shared = true;
  add("expert_biases").expert_biases = true;
  add("router_bias").router_bias = true;
  Variant& clamped = add("clamped");
  clamped.moe.clamp = {.alpha = 1.3f, .limit = 0.6f};
  clamped.moe.routing.shares = Shares::renormalized;
  clamped.expert_biases = clamped.router_bias = clamped.shared = true;
  Variant& identity = add("identity_experts");
  identity.moe.identity_experts = 4;
  identity.moe.experts_per_token = 5;
  identity.moe.routing.scale = 2.5f;
  identity.moe.selection_bias = {
      0.1f, 0, -0.1f, 0.2f, 0, 0, 0.3f, 0, -0.2f, 0.1f};
  Variant& input = add("shares_on_the_input");
  input.moe.routing.target = RouterTarget::input;
  input.moe.routing.scores = RouterScores::sigmoid;
  input.shared = true;
  Variant& both = add("shares_on_the_input_of_identity_experts");
  both.moe.routing.target = RouterTarget::input;
  both.moe.identity_experts = 3;
  both.moe.experts_per_token = 4;
  both.expert_biases = true;
  Variant& groups = add("groups");
  groups.moe.routing.groups = {
      .count = 3, .kept = 2, .score = GroupScore::best_two};
  groups.moe.gated = false;
  Variant& own_logits = add("own_logits_and_scaled_shares");
  own_logits.moe.routing.shares = Shares::renormalized;
  own_logits.moe.share_scale = {0.5f, 2, 1, -1, 0.25f, 1.5f};
  own_logits.own_logits = true;
  return out;
}

LinearWeights linear_weights(
    const std::vector<Matrix>& parts, const std::vector<WeightTensor>& biases) {
  LinearWeights weights{.name = "linear"};
  for (const Matrix& part : parts) {
    weights.parts.push_back(part.weight);
  }
  weights.biases.assign(biases.begin(), biases.end());
  return weights;
}

// Matrices [rows, in] with biases, as one linear.
LinearWeights random_linear(
    const std::vector<int64_t>& rows, int64_t in, bool biased) {
  std::vector<Matrix> parts;
  std::vector<WeightTensor> biases;
  for (int64_t count : rows) {
    parts.push_back(plain_matrix(count, in, DType::f32));
    if (biased) {
      Values values = random_values(size_t(count));
      biases.push_back(make_float(DType::f32, {count}, values));
    }
  }
  return linear_weights(parts, biases);
}

// The weights of a variant, which every backend prepares.
struct Checkpoint {
  explicit Checkpoint(const Variant& variant) {
    std::vector<int64_t> rows{kInner};
    if (variant.moe.gated) {
      rows.push_back(kInner);
    }
    router = random_linear(
        {kExperts + variant.moe.identity_experts},
        kHidden,
        variant.router_bias);
    up.name = "up";
    down.name = "down";
    for (int e = 0; e < kExperts; ++e) {
      up.experts.push_back(random_linear(rows, kHidden, variant.expert_biases));
      down.experts.push_back(
          random_linear({kHidden}, kInner, variant.expert_biases));
    }
    shared_up = random_linear(rows, kHidden, true);
    shared_down = random_linear({kHidden}, kInner, true);
  }
  LinearWeights router, shared_up, shared_down;
  ExpertWeights up, down;
};

std::vector<float> run(
    Backend& backend,
    const Checkpoint& checkpoint,
    const Variant& variant,
    const Step& step,
    const Values& x) {
  auto router = backend.prepare_linear(checkpoint.router);
  auto up = backend.prepare_experts(checkpoint.up);
  auto down = backend.prepare_experts(checkpoint.down);
  auto shared_up = backend.prepare_linear(checkpoint.shared_up);
  auto shared_down = backend.prepare_linear(checkpoint.shared_down);
  MoeWeights weights = variant.moe;
  weights.router = router.get();
  weights.up = up.get();
  weights.down = down.get();
  if (variant.shared) {
    weights.shared = {
        .up = shared_up.get(),
        .down = shared_down.get(),
        .activation = weights.activation,
        .gated = weights.gated,
        .clamp = weights.clamp};
  }
  Tensor input = tensor_of(backend, x, kHidden);
  Values scores;
  for (size_t i = 0; i < x.size(); ++i) {
    if (i % kHidden < kExperts) {
      scores.push_back(x[i]);
    }
  }
  Tensor logits = tensor_of(backend, scores, kExperts);
  if (variant.own_logits) {
    weights.router = nullptr;
    weights.logits = &logits;
  }
  return read_back(
      backend, ops::moe(backend, step, input, weights, {.residual = &input}));
}

// Prompt rows in front, one generated row a sequence behind.
Step mixed_step(int prompt, int rows) {
  Step step = prompt_step(rows);
  step.segments.front().num_rows = prompt;
  step.num_prompt_rows = prompt;
  if (prompt == 0) {
    step.segments.clear();
  }
  for (int row = prompt; row < rows; ++row) {
    step.segments.push_back({.first_row = row, .num_rows = 1, .prompt = false});
  }
  return step;
}

// A CPU backend for each instruction set of this machine.
std::vector<std::unique_ptr<Backend>> cpu_backends() {
  std::vector<std::unique_ptr<Backend>> out;
  for (Isa isa : supported_isas()) {
    ::setenv("MLXCEL_CPU_ISA", std::string(name_of(isa)).c_str(), 1);
    out.push_back(
        make_cpu_backend({.threads = 2, .activation_dtype = DType::f32}));
    ::unsetenv("MLXCEL_CPU_ISA");
  }
  return out;
}

class MoeVariants : public ::testing::TestWithParam<Variant> {};

TEST_P(MoeVariants, MatchPlainLoops) {
  const Variant& variant = GetParam();
  Checkpoint checkpoint(variant);
  auto reference = make_reference_backend();
  auto graph = graph_backend();
  // The last has enough rows for the graph to sort them by expert.
  for (auto [prompt, rows] : {std::pair(0, 1), {0, 5}, {9, 12}, {60, 64}}) {
    SCOPED_TRACE(cat(prompt, " prompt rows of ", rows));
    Step step = mixed_step(prompt, rows);
    Values x = random_values(size_t(rows * kHidden));
    std::vector<float> want = run(*reference, checkpoint, variant, step, x);
    Values exact(want.begin(), want.end());
    for (const auto& cpu : cpu_backends()) {
      expect_near(
          run(*cpu, checkpoint, variant, step, x),
          exact,
          5e-5,
          cpu->description());
    }
    expect_near(run(*graph, checkpoint, variant, step, x), exact, 5e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, MoeVariants, ::testing::ValuesIn(variants()), [](const auto& test) {
      return test.param.name;
    });

struct Form {
  std::string name;
  MlpWeights mlp;
};

std::ostream& operator<<(std::ostream& out, const Form& form) {
  return out << form.name;
}

class MlpForms : public ::testing::TestWithParam<Form> {};

TEST_P(MlpForms, MatchPlainLoops) {
  const MlpWeights& form = GetParam().mlp;
  std::vector<int64_t> rows{form.in_turn ? 74 : 37};
  if (form.gated && !form.in_turn) {
    rows.push_back(37);
  }
  LinearWeights up = random_linear(rows, kHidden, true);
  LinearWeights down = random_linear({kHidden}, 37, true);
  auto run = [&](Backend& backend, const Step& step, const Values& x) {
    auto first = backend.prepare_linear(up);
    auto second = backend.prepare_linear(down);
    MlpWeights weights = form;
    weights.up = first.get();
    weights.down = second.get();
    return read_back(
        backend,
        ops::mlp(backend, step, tensor_of(backend, x, kHidden), weights));
  };
  auto reference = make_reference_backend();
  auto graph = graph_backend();
  for (auto [prompt, count] : {std::pair(0, 3), {19, 22}}) {
    Step step = mixed_step(prompt, count);
    Values x = random_values(size_t(count * kHidden), 2);
    std::vector<float> want = run(*reference, step, x);
    Values exact(want.begin(), want.end());
    for (const auto& cpu : cpu_backends()) {
      expect_near(run(*cpu, step, x), exact, 5e-5, cpu->description());
    }
    expect_near(run(*graph, step, x), exact, 5e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All,
    MlpForms,
    ::testing::Values(
        Form{"clamped", {.clamp = {.alpha = 1.7f, .limit = 0.9f}}},
        Form{
            "clamped_in_turn",
            {.in_turn = true, .clamp = {.alpha = 1.7f, .limit = 0.9f}}},
        Form{
            "xielu",
            {.activation = Activation::xielu,
             .gated = false,
             .xielu =
                 {.alpha_p = 0.7f,
                  .alpha_n = 1.1f,
                  .beta = 0.4f,
                  .eps = -1e-3f}}}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace mlxcel::testing
