// Latent attention: the heads' key matrices are absorbed into the queries and
// their value matrices into the result, so that every head attends to the same
// cached vectors, [rotated key, latent], and takes the latent part as values.
#include "ops/cpu/latent_attention.h"

#include "core/error.h"
#include "ops/cpu/attention_call.h"
#include "ops/cpu/elementwise.h"
#include "ops/cpu/linear_stage.h"

#include <cstring>

namespace mlxcel::cpu {

namespace {

class CpuHeads : public HeadLinear {
 public:
  explicit CpuHeads(std::vector<std::unique_ptr<CpuLinear>> heads)
      : HeadLinear(
            int(heads.size()), heads.front()->in(), heads.front()->out()),
        heads_(std::move(heads)) {}

  const CpuLinear& head(int index) const {
    return *heads_[size_t(index)];
  }

 private:
  std::vector<std::unique_ptr<CpuLinear>> heads_;
};

// A matrix whose rows hold a part for each head, at equal distances.
template <typename Float>
struct HeadParts {
  Float* data;
  int64_t pitch;     // from row to row
  int64_t distance;  // from head to head
};

// One head's product inside a fork-join.
class HeadRun {
 public:
  HeadRun(
      Context& context,
      const Step& step,
      const CpuLinear& linear,
      const float* x,
      int64_t x_pitch,
      float* y,
      int64_t y_pitch)
      : product_(
            context,
            linear,
            {step.num_prompt_rows, step.num_rows() - step.num_prompt_rows},
            active_terms(step, linear.terms())),
        stage_(context, product_, y, nullptr, {}, y_pitch) {
    product_.set_input(x, x_pitch, nullptr);
  }
  void run(int thread) {
    product_.pack(thread);
    stage_.run(thread);
  }

 private:
  Product product_;
  LinearStage stage_;
};

// y of each head = its matrix times x of the head. Generated rows have little
// work a head, so all heads share a fork-join; prompt rows take one head after
// the other, which share memory that stays in the caches.
void multiply_heads(
    Context& context,
    const Step& step,
    const HeadLinear& linears,
    const HeadParts<const float>& x,
    const HeadParts<float>& y) {
  const auto& heads = static_cast<const CpuHeads&>(linears);
  std::vector<std::unique_ptr<HeadRun>> runs;
  auto run_all = [&] {
    context.pool.run([&](int thread) {
      for (const auto& run : runs) {
        run->run(thread);
      }
    });
    runs.clear();
  };
  for (int h = 0; h < heads.count(); ++h) {
    runs.push_back(std::make_unique<HeadRun>(
        context,
        step,
        heads.head(h),
        x.data + h * x.distance,
        x.pitch,
        y.data + h * y.distance,
        y.pitch));
    if (step.num_prompt_rows > 0) {
      run_all();
    }
  }
  if (!runs.empty()) {
    run_all();
  }
}

// Queries and keys of equal width for AttentionCall: [rotated features, latent]
// of each head, then of the key.
Tensor absorb(
    Context& context,
    const Step& step,
    const Tensor& q,
    const Tensor& kv,
    const LatentAttentionArgs& args) {
  int64_t heads = args.num_heads(), latent = args.latent_dim();
  int64_t rope = args.rope_dim, plain = args.key_up->in();
  int64_t width = rope + latent;
  Tensor out = context.make(q.rows(), (heads + 1) * width);
  multiply_heads(
      context,
      step,
      *args.key_up,
      {data(q), q.cols(), plain + rope},
      {data(out) + rope, out.cols(), width});
  const auto* norm = static_cast<const CpuNorm*>(args.latent_norm);
  auto copy = [](float* to, const float* from, int64_t count) {
    if (count > 0) {
      std::memcpy(to, from, size_t(count) * sizeof(float));
    }
  };
  for_rows(context, q.rows(), q.cols(), [&](int64_t row) {
    const float* query = data(q) + row * q.cols();
    float* to = data(out) + row * out.cols();
    for (int64_t h = 0; h < heads; ++h) {
      copy(to + h * width, query + h * (plain + rope) + plain, rope);
    }
    const float* from = data(kv) + row * kv.cols();
    float* key = to + heads * width;
    copy(key, from + latent, rope);
    if (norm != nullptr) {
      norm->apply(from, key + rope);
    } else {
      copy(key + rope, from, latent);
    }
    for (int64_t i = rope; i < width && args.latent_scale != 1; ++i) {
      key[i] *= args.latent_scale;
    }
  });
  return out;
}

}  // namespace

std::unique_ptr<HeadLinear> prepare_heads(
    Context& context, HeadWeights weights) {
  std::vector<std::unique_ptr<CpuLinear>> heads;
  for (LinearWeights& head : weights.heads) {
    heads.push_back(std::make_unique<CpuLinear>(context, std::move(head)));
    const CpuLinear& first = *heads.front();
    const CpuLinear& last = *heads.back();
    if (last.in() != first.in() || last.out() != first.out()) {
      throw CheckpointError(
          cat("the heads of ", weights.name, " differ in shape"),
          cat("head ",
              heads.size() - 1,
              " [",
              last.out(),
              ", ",
              last.in(),
              "], head 0 [",
              first.out(),
              ", ",
              first.in(),
              "]"),
          "check the sizes in config.json");
    }
  }
  if (heads.empty()) {
    throw CheckpointError(
        cat(weights.name, " has no heads"),
        "",
        "check num_attention_heads in config.json");
  }
  return std::make_unique<CpuHeads>(std::move(heads));
}

Tensor latent_attention(
    Context& context,
    const Step& step,
    const Tensor& q,
    const Tensor& kv,
    const LatentAttentionArgs& args,
    KvCache& cache,
    int layer) {
  Tensor rows = absorb(context, step, q, kv, args);
  int latent = args.latent_dim();
  AttentionArgs attention{
      .num_heads = args.num_heads(),
      .num_kv_heads = 1,
      .head_dim = args.rope_dim + latent,
      .scale = args.scale,
      .rope = args.rope};
  Tensor mixed = AttentionCall(
                     context,
                     step,
                     rows,
                     attention,
                     static_cast<CpuKvCache&>(cache),
                     layer,
                     nullptr,
                     latent)
                     .run();
  int64_t values = args.value_up->out();
  Tensor out = context.make(q.rows(), args.num_heads() * values);
  multiply_heads(
      context,
      step,
      *args.value_up,
      {data(mixed), mixed.cols(), latent},
      {data(out), out.cols(), values});
  return out;
}

}  // namespace mlxcel::cpu
