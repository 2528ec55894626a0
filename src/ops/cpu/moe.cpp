// The mixture of experts: rows are grouped by the experts that the router
// chooses, so that only those experts' weights are read. A row's result is the
// sum over its experts by descending router weight, whatever else the step
// holds.
#include "core/error.h"
#include "ops/cpu/elementwise.h"
#include "ops/cpu/kernels/norm_kernels.h"
#include "ops/cpu/linear_stage.h"
#include "ops/cpu/matmul.h"
#include "ops/cpu/moe_routing.h"

#include <cmath>
#include <cstring>
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

// Where the experts read and write.
struct Buffers {
  const float* x;  // a row for each row of the step, or for each place
  bool by_place;
  float* h;  // [places, inner]
  float* z;  // [places, hidden]
};

// One expert's share of a step: its prompt rows or its generated rows.
class ExpertRun {
 public:
  ExpertRun(
      Context& context,
      const MoeWeights& weights,
      const Group& group,
      bool prompt,
      const Buffers& at)
      : first_(group.first + (prompt ? 0 : group.prompt_rows)),
        plan_(
            prompt ? RowPlan{group.prompt_rows, 0}
                   : RowPlan{0, int(group.rows.size()) - group.prompt_rows}),
        up_(context, expert(*weights.up, group), plan_, {}),
        down_(context, expert(*weights.down, group), plan_, {}),
        gate_up_(
            context,
            up_,
            at.h + first_ * weights.down->in(),
            weights.down->in(),
            {.activation = weights.activation,
             .gated = weights.gated,
             .clamp = weights.clamp}),
        stage_(
            context, down_, at.z + first_ * weights.down->out(), nullptr, {}) {
    int64_t hidden = weights.up->in(), inner = weights.down->in();
    std::span<const int32_t> rows(group.rows);
    if (at.by_place) {
      up_.set_input(at.x + first_ * hidden, hidden, nullptr);
    } else {
      up_.set_input(
          at.x,
          hidden,
          nullptr,
          rows.subspan(size_t(first_ - group.first), size_t(plan_.rows())));
    }
    down_.set_input(at.h + first_ * inner, inner, nullptr);
  }

  // `next` runs after this one.
  void set_next(const ExpertRun& next) {
    up_.set_next(&next.up_);
    down_.set_next(&next.down_);
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
    const Buffers& at) {
  for (const Group& group : groups) {
    if (group.prompt_rows == 0) {
      continue;
    }
    ExpertRun run(context, weights, group, true, at);
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
    const Buffers& at) {
  std::vector<std::unique_ptr<ExpertRun>> runs;
  for (const Group& group : groups) {
    if (int(group.rows.size()) > group.prompt_rows) {
      runs.push_back(
          std::make_unique<ExpertRun>(context, weights, group, false, at));
    }
  }
  if (runs.empty()) {
    return;
  }
  for (size_t i = 1; i < runs.size(); ++i) {
    runs[i - 1]->set_next(*runs[i]);
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

// Each place's row of x times its share.
Tensor scaled_inputs(
    Context& context,
    const Tensor& x,
    const Routes& routes,
    const std::vector<int>& places) {
  int64_t hidden = x.cols(), count = int64_t(places.size());
  Tensor scaled = context.make(count, hidden);
  for_rows(context, count, hidden, [&](int64_t i) {
    int64_t place = places[size_t(i)];
    if (place < 0) {
      return;
    }
    const float* from = data(x) + i / routes.per_token * hidden;
    float* to = data(scaled) + place * hidden;
    for (int64_t c = 0; c < hidden; ++c) {
      to[c] = routes.shares[size_t(i)] * from[c];
    }
  });
  return scaled;
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
  Tensor logits = weights.logits
                      ? *weights.logits
                      : linear(context, step, input, *weights.router, {});
  Routes routes = route(logits, weights);
  std::vector<int> places;
  std::vector<Group> groups =
      group_rows(routes, weights.up->count(), step.num_prompt_rows, places);

  int64_t rows = x.rows(), hidden = x.cols();
  int per_token = routes.per_token;
  Tensor h = context.make(rows * per_token, weights.down->in());
  Tensor z = context.make(rows * per_token, hidden);
  bool on_input = weights.routing.target == RouterTarget::input;
  Tensor read =
      on_input ? scaled_inputs(context, input, routes, places) : input;
  Buffers at{data(read), on_input, data(h), data(z)};
  run_prompt_rows(context, weights, groups, at);
  run_decode_rows(context, weights, groups, at);
  Shared shared = run_shared(context, step, input, weights);

  Tensor y = context.make(rows, hidden);
  const NormKernels& kernels = norm_kernels(context.isa);
  const auto* output_norm = static_cast<const CpuNorm*>(options.output_norm);
  for_rows(context, rows, hidden * (per_token + 1), [&](int64_t row) {
    float* out = data(y) + row * hidden;
    std::memset(out, 0, size_t(hidden) * sizeof(float));
    for (int64_t i = row * per_token; i < (row + 1) * per_token; ++i) {
      int64_t place = places[size_t(i)];
      const float* from =
          place < 0 ? data(input) + row * hidden : data(z) + place * hidden;
      bool applied = on_input && place >= 0;
      kernels.add(
          out, from, applied ? 1 : routes.shares[size_t(i)], out, hidden);
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
