// The mixture of experts: rows are grouped by the experts that the router
// chooses, so that only those experts' weights are read. A row's result is the
// sum over its experts by descending router weight, whatever else the step
// holds.
#include "core/error.h"
#include "ops/cpu/elementwise.h"
#include "ops/cpu/kernels/norm_kernels.h"
#include "ops/cpu/linear_stage.h"
#include "ops/cpu/matmul.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

namespace mlxcel::cpu {

namespace {

class CpuExperts : public Experts {
 public:
  explicit CpuExperts(std::vector<std::unique_ptr<CpuLinear>> experts)
      : Experts(
            int(experts.size()), experts.front()->in(), experts.front()->out()),
        experts_(std::move(experts)) {}

  const CpuLinear& expert(int index) const {
    return *experts_[size_t(index)];
  }

 private:
  std::vector<std::unique_ptr<CpuLinear>> experts_;
};

// The experts of every row: entry row * per_token + i is its i-th best.
struct Routes {
  int per_token = 0;
  std::vector<int> experts;
  std::vector<float> weights;
};

// Chooses the experts of one row after the other.
class Router {
 public:
  Router(const MoeWeights& weights, int count)
      : routing_(weights.routing),
        bias_(weights.selection_bias),
        count_(size_t(count)),
        per_token_(size_t(weights.experts_per_token)),
        scores_(count_),
        keys_(count_),
        order_(count_) {}

  // Best first; equal ones by number.
  void choose(const float* logits, int* experts, float* shares) {
    if (routing_.scores == RouterScores::sparse_mixer) {
      mix_sparsely(logits, experts, shares);
      return;
    }
    score(logits);
    for (size_t e = 0; e < count_; ++e) {
      float key = scores_[e] + (bias_.empty() ? 0 : bias_[e]);
      // Numbers that are none come last, so that the order is always one.
      keys_[e] = std::isnan(key) ? kNever : key;
    }
    if (routing_.groups_kept < routing_.groups) {
      keep_groups();
    }
    sort(per_token_);
    float sum = 0;
    for (size_t i = 0; i < per_token_; ++i) {
      experts[i] = order_[i];
      shares[i] = scores_[size_t(order_[i])];
      sum += shares[i];
    }
    float factor = routing_.scale;
    if (routing_.shares == Shares::renormalized) {
      factor /= std::max(sum, routing_.least_sum);
    }
    for (size_t i = 0; i < per_token_; ++i) {
      shares[i] *= factor;
    }
  }

 private:
  static constexpr float kNever = -std::numeric_limits<float>::infinity();

  void score(const float* logits) {
    if (routing_.scores == RouterScores::sigmoid) {
      for (size_t e = 0; e < count_; ++e) {
        scores_[e] = 1 / (1 + std::exp(-logits[e]));
      }
      return;
    }
    float highest = kNever;
    for (size_t e = 0; e < count_; ++e) {
      highest = std::max(highest, logits[e]);
    }
    float sum = 0;
    for (size_t e = 0; e < count_; ++e) {
      scores_[e] = std::exp(logits[e] - highest);
      sum += scores_[e];
    }
    for (float& value : scores_) {
      value /= sum;
    }
  }

  void sort(size_t best) {
    std::iota(order_.begin(), order_.end(), 0);
    std::partial_sort(
        order_.begin(),
        order_.begin() + ptrdiff_t(best),
        order_.end(),
        [&](int a, int b) {
          float left = keys_[size_t(a)], right = keys_[size_t(b)];
          return left != right ? left > right : a < b;
        });
  }

  // Experts outside the best groups can no longer be chosen.
  void keep_groups() {
    size_t size = count_ / size_t(routing_.groups);
    std::vector<std::pair<float, size_t>> groups;
    for (size_t g = 0; g < size_t(routing_.groups); ++g) {
      float first = kNever, second = kNever;
      for (size_t e = g * size; e < (g + 1) * size; ++e) {
        if (keys_[e] > first) {
          second = std::exchange(first, keys_[e]);
        } else {
          second = std::max(second, keys_[e]);
        }
      }
      bool two = routing_.group_score == GroupScore::best_two;
      groups.emplace_back(-(two ? first + second : first), g);
    }
    std::sort(groups.begin(), groups.end());
    for (size_t i = size_t(routing_.groups_kept); i < groups.size(); ++i) {
      size_t begin = groups[i].second * size;
      std::fill_n(keys_.begin() + ptrdiff_t(begin), size, kNever);
    }
  }

  void mix_sparsely(const float* logits, int* experts, float* shares) {
    std::copy_n(logits, count_, keys_.begin());
    for (float& key : keys_) {
      key = std::isnan(key) ? kNever : key;
    }
    for (size_t i = 0; i < per_token_; ++i) {
      sort(1);
      auto best = size_t(order_[0]);
      float highest = keys_[best], sum = 0;
      for (size_t e = 0; e < count_; ++e) {
        float reach = std::max(std::fabs(logits[e]), highest);
        if (keys_[e] != kNever &&
            (highest - logits[e]) / reach <= 2 * routing_.tolerance) {
          sum += std::exp(logits[e] - highest);
        }
      }
      experts[i] = int(best);
      shares[i] = routing_.scale / sum;
      keys_[best] = kNever;
    }
  }

  const Routing& routing_;
  const std::vector<float>& bias_;
  size_t count_, per_token_;
  std::vector<float> scores_, keys_;
  std::vector<int> order_;
};

Routes route(
    Context& context,
    const Step& step,
    const Tensor& x,
    const MoeWeights& weights) {
  Tensor logits = linear(context, step, x, *weights.router, {});
  int count = int(logits.cols());
  Routes routes;
  routes.per_token = weights.experts_per_token;
  size_t pairs = size_t(x.rows()) * size_t(routes.per_token);
  routes.experts.resize(pairs);
  routes.weights.resize(pairs);
  Router router(weights, count);
  for (int64_t row = 0; row < x.rows(); ++row) {
    int64_t at = row * routes.per_token;
    router.choose(
        data(logits) + row * count,
        routes.experts.data() + at,
        routes.weights.data() + at);
  }
  return routes;
}

// The rows of one expert, prompt rows first. Their places in the buffers that
// all experts share follow each other.
struct Group {
  int expert = 0;
  int first = 0;  // place of the first row
  int prompt_rows = 0;
  std::vector<int32_t> rows;  // of the step
};

// Groups by expert, and the place of each entry of the routes.
std::vector<Group> group_rows(
    const Routes& routes,
    int experts,
    int prompt_rows,
    std::vector<int>& places) {
  std::vector<Group> all(static_cast<size_t>(experts));
  places.resize(routes.experts.size());
  for (size_t i = 0; i < routes.experts.size(); ++i) {
    Group& group = all[size_t(routes.experts[i])];
    int row = int(i) / routes.per_token;
    places[i] = int(group.rows.size());
    group.rows.push_back(row);
    group.prompt_rows += row < prompt_rows ? 1 : 0;
  }
  int first = 0;
  for (int e = 0; e < experts; ++e) {
    all[size_t(e)].expert = e;
    all[size_t(e)].first = first;
    first += int(all[size_t(e)].rows.size());
  }
  for (size_t i = 0; i < places.size(); ++i) {
    places[i] += all[size_t(routes.experts[i])].first;
  }
  std::erase_if(all, [](const Group& group) { return group.rows.empty(); });
  return all;
}

// One expert's share of a step: its prompt rows or its generated rows.
class ExpertRun {
 public:
  // h: [places, inner], z: [places, hidden].
  ExpertRun(
      Context& context,
      const MoeWeights& weights,
      const Group& group,
      bool prompt,
      const Tensor& x,
      float* h,
      float* z)
      : first_(group.first + (prompt ? 0 : group.prompt_rows)),
        plan_(
            prompt ? RowPlan{group.prompt_rows, 0}
                   : RowPlan{0, int(group.rows.size()) - group.prompt_rows}),
        up_(context, expert(*weights.up, group), plan_, {}),
        down_(context, expert(*weights.down, group), plan_, {}),
        gate_up_(
            context,
            up_,
            h + first_ * weights.down->in(),
            weights.down->in(),
            weights.activation,
            true),
        stage_(context, down_, z + first_ * weights.down->out(), nullptr, {}) {
    int64_t inner = weights.down->in();
    std::span<const int32_t> rows(group.rows);
    up_.set_input(
        data(x),
        x.cols(),
        nullptr,
        rows.subspan(size_t(first_ - group.first), size_t(plan_.rows())));
    down_.set_input(h + first_ * inner, inner, nullptr);
  }

  void run_up(int thread) {
    up_.pack(thread);
    gate_up_.run(thread);
  }
  // After a barrier.
  void run_down(int thread) {
    down_.pack(thread);
    stage_.run(thread);
  }

 private:
  static const CpuLinear& expert(const Experts& experts, const Group& group) {
    return static_cast<const CpuExperts&>(experts).expert(group.expert);
  }

  int64_t first_;
  RowPlan plan_;
  Product up_, down_;
  GateUpStage gate_up_;
  LinearStage stage_;
};

// One expert after the other, so that they share scratch memory that stays in
// the caches.
void run_prompt_rows(
    Context& context,
    const MoeWeights& weights,
    const std::vector<Group>& groups,
    const Tensor& x,
    float* h,
    float* z) {
  for (const Group& group : groups) {
    if (group.prompt_rows == 0) {
      continue;
    }
    ExpertRun run(context, weights, group, true, x, h, z);
    context.pool.run([&](int thread) {
      run.run_up(thread);
      context.pool.barrier();
      run.run_down(thread);
    });
  }
}

// All experts in one fork-join: a generated row has little work for each.
void run_decode_rows(
    Context& context,
    const MoeWeights& weights,
    const std::vector<Group>& groups,
    const Tensor& x,
    float* h,
    float* z) {
  std::vector<std::unique_ptr<ExpertRun>> runs;
  for (const Group& group : groups) {
    if (int(group.rows.size()) > group.prompt_rows) {
      runs.push_back(
          std::make_unique<ExpertRun>(context, weights, group, false, x, h, z));
    }
  }
  if (runs.empty()) {
    return;
  }
  context.pool.run([&](int thread) {
    for (const auto& run : runs) {
      run->run_up(thread);
    }
    context.pool.barrier();
    for (const auto& run : runs) {
      run->run_down(thread);
    }
  });
}

// What is added to the experts' sum: the shared expert's result, and the logit
// of its gate a row.
struct Shared {
  Tensor result, gate;
};

Shared run_shared(
    Context& context,
    const Step& step,
    const Tensor& x,
    const MoeWeights& weights) {
  Shared shared;
  if (weights.shared.up != nullptr) {
    shared.result = mlp(context, step, x, weights.shared, {});
    if (weights.shared_gate != nullptr) {
      shared.gate = linear(context, step, x, *weights.shared_gate, {});
    }
  }
  return shared;
}

}  // namespace

std::unique_ptr<Experts> prepare_experts(
    Context& context, ExpertWeights weights) {
  std::vector<std::unique_ptr<CpuLinear>> experts;
  for (LinearWeights& expert : weights.experts) {
    experts.push_back(std::make_unique<CpuLinear>(context, std::move(expert)));
    const CpuLinear& first = *experts.front();
    const CpuLinear& last = *experts.back();
    if (last.in() != first.in() || last.out() != first.out()) {
      throw CheckpointError(
          cat("the experts of ", weights.name, " differ in shape"),
          cat("expert ",
              experts.size() - 1,
              " [",
              last.out(),
              ", ",
              last.in(),
              "], expert 0 [",
              first.out(),
              ", ",
              first.in(),
              "]"),
          "check the sizes in config.json");
    }
  }
  if (experts.empty()) {
    throw CheckpointError(
        cat(weights.name, " has no experts"),
        "",
        "check the number of experts in config.json");
  }
  return std::make_unique<CpuExperts>(std::move(experts));
}

Tensor moe(
    Context& context,
    const Step& step,
    const Tensor& x,
    const MoeWeights& weights,
    const LinearOptions& options) {
  Tensor input = options.norm != nullptr ? norm(context, x, *options.norm) : x;
  Routes routes = route(context, step, input, weights);
  std::vector<int> places;
  std::vector<Group> groups =
      group_rows(routes, weights.up->count(), step.num_prompt_rows, places);

  int64_t rows = x.rows(), hidden = x.cols();
  int per_token = routes.per_token;
  Tensor h = context.make(rows * per_token, weights.down->in());
  Tensor z = context.make(rows * per_token, hidden);
  run_prompt_rows(context, weights, groups, input, data(h), data(z));
  run_decode_rows(context, weights, groups, input, data(h), data(z));
  Shared shared = run_shared(context, step, input, weights);

  Tensor y = context.make(rows, hidden);
  const NormKernels& kernels = norm_kernels(context.isa);
  const auto* output_norm = static_cast<const CpuNorm*>(options.output_norm);
  for_rows(context, rows, hidden * (per_token + 1), [&](int64_t row) {
    float* out = data(y) + row * hidden;
    std::memset(out, 0, size_t(hidden) * sizeof(float));
    for (int64_t i = row * per_token; i < (row + 1) * per_token; ++i) {
      const float* from = data(z) + int64_t(places[size_t(i)]) * hidden;
      kernels.add(out, from, routes.weights[size_t(i)], out, hidden);
    }
    if (shared.result) {
      float factor =
          shared.gate ? 1 / (1 + std::exp(-data(shared.gate)[row])) : 1;
      kernels.add(out, data(shared.result) + row * hidden, factor, out, hidden);
    }
    if (output_norm != nullptr) {
      output_norm->apply(out, out);
    }
    if (options.residual != nullptr) {
      kernels.add(
          data(*options.residual) + row * hidden,
          out,
          options.output_scale,
          out,
          hidden);
    } else if (options.output_scale != 1) {
      for (int64_t i = 0; i < hidden; ++i) {
        out[i] *= options.output_scale;
      }
    }
  });
  return y;
}

}  // namespace mlxcel::cpu
