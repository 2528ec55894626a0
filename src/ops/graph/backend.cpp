// The graph backend and the entry points of its library.
#include "core/error.h"
#include "ops/graph/attention.h"
#include "ops/graph/kv_cache.h"
#include "ops/graph/linear.h"
#include "ops/graph/moe.h"
#include "ops/graph/norm.h"
#include "ops/graph/plan.h"
#include "ops/graph/recurrence.h"

#include <cstdlib>
#include <cstring>
#include <filesystem>

namespace mlxcel::graph {

namespace {

// About eight layers of a transformer. On an H200 an 8B model's step of one
// token took 5.2 ms with 24, 5.9 with 12 and 6.3 with one start at its end.
constexpr int kOpsBeforeStart = 24;

class GraphBackend : public Backend {
  // Runs a part of the interface on the right device, and turns MLX's
  // exceptions into ours.
  template <typename F>
  auto guard(const char* op, const std::string& name, const F& body) {
    try {
      context_->enter();
      return body();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      throw Error(
          cat("graph backend: ",
              op,
              name.empty() ? "" : " of ",
              name,
              " failed"),
          error.what(),
          "try --backend cpu");
    }
  }

 public:
  explicit GraphBackend(const BackendOptions& options)
      : context_(std::make_shared<Context>(options)) {}

  std::string description() const override {
    std::string name = "cpu";
    if (context_->gpu) {
      name = "gpu";
      const auto& info = mx::device_info(context_->device);
      auto entry = info.find("device_name");
      if (entry != info.end()) {
        name += ", " + std::get<std::string>(entry->second);
      }
    }
    return cat(
        "graph (MLX ",
        mx::version(),
        ", ",
        name,
        ", ",
        context_->compute_dtype,
        ")");
  }

  std::unique_ptr<Linear> prepare_linear(LinearWeights weights) override {
    return guard("prepare_linear", weights.name, [&] {
      return std::make_unique<GraphLinear>(*context_, weights);
    });
  }

  std::unique_ptr<Experts> prepare_experts(ExpertWeights weights) override {
    return guard("prepare_experts", weights.name, [&] {
      return std::make_unique<GraphExperts>(*context_, weights);
    });
  }

  std::unique_ptr<HeadLinear> prepare_heads(HeadWeights weights) override {
    return guard("prepare_heads", weights.name, [&] {
      return std::make_unique<GraphHeads>(*context_, weights);
    });
  }

  std::unique_ptr<Embedding> prepare_embedding(
      EmbeddingWeights weights) override {
    return guard("prepare_embedding", weights.table.name, [&] {
      return std::make_unique<GraphEmbedding>(*context_, weights);
    });
  }

  std::unique_ptr<Norm> prepare_norm(NormWeights weights) override {
    return guard("prepare_norm", "", [&] {
      return std::make_unique<GraphNorm>(*context_, weights);
    });
  }

  std::unique_ptr<Rope> prepare_rope(RopeTable table) override {
    return guard("prepare_rope", "", [&] {
      return std::make_unique<GraphRope>(*context_, table);
    });
  }

  std::unique_ptr<Constants> prepare_constants(
      std::vector<float> values) override {
    return guard("prepare_constants", "", [&] {
      return std::make_unique<GraphConstants>(values);
    });
  }

  std::unique_ptr<KvCache> make_kv_cache(const KvCacheSpec& spec) override {
    return guard("make_kv_cache", "", [&] {
      return std::make_unique<GraphKvCache>(context_, spec);
    });
  }

  Tensor embed(const Step& step, const Embedding& table, float scale) override {
    return guard("embed", "", [&] {
      mx::array ids(step.tokens.data(), {step.num_rows()}, mx::int32);
      mx::array x = static_cast<const GraphEmbedding&>(table).apply(
          *context_, ids, plan(step));
      return context_->wrap(context_->scale_add(x, scale, nullptr));
    });
  }

  Tensor norm(const Step&, const Tensor& x, const Norm& norm) override {
    return guard("norm", "", [&] {
      const mx::array& rows = value(x);
      int size = int_of(norm.size());
      mx::array runs = mx::reshape(rows, {-1, size});
      return context_->wrap(mx::reshape(apply_norm(&norm, runs), rows.shape()));
    });
  }

  Tensor linear(
      const Step& step,
      const Tensor& x,
      const Linear& weight,
      const LinearOptions& options) override {
    return guard("linear", "", [&] {
      Fusions fusions{.norm = static_cast<const GraphNorm*>(options.norm)};
      fusions.residual = fused_residual(options);
      mx::array y = multiply(step, value(x), weight, fusions);
      return started(fusions.residual ? y : finish(y, options));
    });
  }

  Tensor mlp(
      const Step& step,
      const Tensor& x,
      const MlpWeights& weights,
      const LinearOptions& options) override {
    return guard("mlp", "", [&] {
      Fusions fusions{.norm = static_cast<const GraphNorm*>(options.norm)};
      fusions.residual = fused_residual(options);
      mx::array y = dense_mlp(step, value(x), weights, fusions);
      return started(fusions.residual ? y : finish(y, options));
    });
  }

  Tensor moe(
      const Step& step,
      const Tensor& x,
      const MoeWeights& weights,
      const LinearOptions& options) override {
    return guard("moe", "", [&] {
      mx::array input = apply_norm(options.norm, value(x));
      mx::array logits = weights.logits
                             ? value(*weights.logits)
                             : multiply(step, input, *weights.router);
      mx::array y = mixture(*context_, input, logits, weights);
      if (weights.shared.up) {
        mx::array shared = dense_mlp(step, input, weights.shared);
        if (weights.shared_gate) {
          shared = mx::multiply(
              shared, mx::sigmoid(multiply(step, input, *weights.shared_gate)));
        }
        y = mx::add(y, shared);
      }
      return started(finish(y, options));
    });
  }

  Tensor attention(
      const Step& step,
      const Tensor& qkv,
      const AttentionArgs& args,
      KvCache& cache,
      int layer,
      const Tensor* shared) override {
    return guard("attention", "", [&] {
      return context_->wrap(graph::attention(
          *context_,
          plan(step),
          value(qkv),
          args,
          static_cast<GraphKvCache&>(cache),
          layer,
          shared ? &value(*shared) : nullptr));
    });
  }

  Tensor latent_attention(
      const Step& step,
      const Tensor& q,
      const Tensor& kv,
      const LatentAttentionArgs& args,
      KvCache& cache,
      int layer) override {
    return guard("latent_attention", "", [&] {
      return context_->wrap(graph::latent_attention(
          *context_,
          plan(step),
          value(q),
          value(kv),
          args,
          static_cast<GraphKvCache&>(cache),
          layer));
    });
  }

  Tensor recurrence(
      const Step& step,
      const Recurrence& op,
      KvCache& cache,
      int layer) override {
    return guard("recurrence", "", [&] {
      return context_->wrap(graph::recurrence(
          *context_, step, op, static_cast<GraphKvCache&>(cache), layer));
    });
  }

  Tensor add(
      const Step&, const Tensor& x, const Tensor& y, float scale) override {
    return guard("add", "", [&] {
      return context_->wrap(context_->scale_add(value(y), scale, &value(x)));
    });
  }

  Tensor multiply(
      const Step&,
      const Tensor& x,
      const Tensor* y,
      const MultiplyOptions& options) override {
    return guard("multiply", "", [&] {
      mx::array product = activate(options.activation, value(x));
      if (y) {
        int first = int_of(options.column), count = int_of(x.cols());
        product = mx::multiply(
            product,
            mx::slice(
                value(*y), {0, first}, {int_of(x.rows()), first + count}));
      }
      return context_->wrap(
          context_->scale_add(product, options.scale, nullptr));
    });
  }

  Tensor weighted_sum(
      const Step&,
      const Tensor& base,
      const std::vector<Tensor>& inputs,
      const Tensor& weights,
      int64_t first) override {
    return guard("weighted_sum", "", [&] {
      mx::array sum = mx::astype(value(base), mx::float32);
      int rows = int_of(base.rows());
      for (size_t k = 0; k < inputs.size(); ++k) {
        int column = int_of(first + int64_t(k));
        mx::array weight =
            mx::slice(value(weights), {0, column}, {rows, column + 1});
        sum = mx::add(
            sum,
            mx::multiply(value(inputs[k]), mx::astype(weight, mx::float32)));
      }
      return context_->wrap(context_->to_compute(sum));
    });
  }

  Tensor match_size(const Step&, const Tensor& x, const Tensor& like) override {
    return guard("match_size", "", [&] {
      auto mean_square = [](const mx::array& rows) {
        return mx::mean(mx::square(rows), 1, true);
      };
      mx::array wide = mx::astype(value(x), mx::float32);
      mx::array wanted =
          mx::sqrt(mean_square(mx::astype(value(like), mx::float32)));
      mx::array own =
          mx::sqrt(mx::maximum(mean_square(wide), mx::array(1e-5f)));
      return context_->wrap(
          context_->to_compute(mx::divide(mx::multiply(wide, wanted), own)));
    });
  }

  Tensor cut_below(
      const Step&,
      const Tensor& x,
      int64_t columns,
      float deviations) override {
    return guard("cut_below", "", [&] {
      mx::array rows = mx::astype(
          mx::slice(value(x), {0, 0}, {int_of(x.rows()), int_of(columns)}),
          mx::float32);
      mx::array cut = mx::add(
          mx::mean(rows, 1, true),
          mx::multiply(
              mx::sqrt(mx::var(rows, 1, true)), mx::array(deviations)));
      return context_->wrap(context_->to_compute(
          mx::maximum(mx::subtract(rows, cut), mx::array(0.0f))));
    });
  }

  Tensor head(
      const Step& step, const Tensor& x, const HeadArgs& args) override {
    return guard("head", "", [&] {
      int rows = int(step.output_rows.size());
      mx::array logits = mx::zeros({rows, int_of(args.head->out())});
      if (rows > 0) {
        mx::array wanted = value(x);
        if (rows < step.num_rows()) {
          wanted = mx::take(
              wanted, mx::array(step.output_rows.data(), {rows}, mx::int32), 0);
        }
        logits = mx::astype(head_product(step, wanted, args), mx::float32);
        if (args.scale != 1) {
          logits = mx::multiply(logits, context_->scalar(args.scale));
        }
        if (args.softcap != 0) {
          logits = mx::multiply(
              mx::tanh(
                  mx::multiply(logits, context_->scalar(1 / args.softcap))),
              context_->scalar(args.softcap));
        }
      }
      // The device starts now; a step without output rows ends here too, so
      // that the graph never spans two steps.
      context_->eval({logits}, false);
      waiting_ops_ = 0;
      return context_->wrap(logits);
    });
  }

  void read(const Tensor& tensor, float* out) override {
    guard("read", "", [&] {
      mx::array wide = mx::contiguous(mx::astype(value(tensor), mx::float32));
      context_->eval({wide}, true);
      if (wide.nbytes() != 0) {  // no rows: `out` may be null
        std::memcpy(out, wide.data<float>(), wide.nbytes());
      }
      return 0;
    });
  }

 private:
  // A GPU starts on what the host has built of a step so far, every few layers:
  // building takes as long as the device's work.
  Tensor started(const mx::array& y) {
    if (context_->gpu && ++waiting_ops_ >= kOpsBeforeStart) {
      waiting_ops_ = 0;
      mx::async_eval(y);
    }
    return context_->wrap(y);
  }

  Plan& plan(const Step& step) {
    if (!plan_ || !plan_->describes(step)) {
      plan_ = std::make_unique<Plan>(step);
    }
    return *plan_;
  }

  static mx::array apply_norm(const Norm* norm, const mx::array& x) {
    return norm ? static_cast<const GraphNorm*>(norm)->apply(x) : x;
  }

  mx::array multiply(
      const Step& step,
      const mx::array& x,
      const Linear& weight,
      const Fusions& fusions = {}) {
    return static_cast<const GraphLinear&>(weight).apply(
        *context_, x, plan(step), fusions);
  }

  // The residual, where it is added to the product as it is.
  const mx::array* fused_residual(const LinearOptions& options) const {
    return context_->cuda && options.residual && !options.output_norm &&
                   options.output_scale == 1
               ? &value(*options.residual)
               : nullptr;
  }

  // Fusions: the norm before it and the residual.
  mx::array dense_mlp(
      const Step& step,
      const mx::array& x,
      const MlpWeights& weights,
      const Fusions& fusions = {}) {
    Fusions before{.norm = fusions.norm};
    Fusions after{
        .norm = static_cast<const GraphNorm*>(weights.inner_norm),
        .residual = fusions.residual};
    if (weights.gated && !weights.in_turn && weights.gate_scale == 1 &&
        weights.clamp.limit == 0 && weights.activation != Activation::xielu &&
        weights.activation != Activation::none) {
      before.gate = weights.activation;
      return multiply(
          step, multiply(step, x, *weights.up, before), *weights.down, after);
    }
    mx::array y = multiply(step, x, *weights.up, before);
    if (weights.in_turn) {
      y = parted(y);
    }
    if (weights.gate_scale != 1) {
      int rows = y.shape(0), width = y.shape(1);
      int gates = weights.gated ? width / 2 : width;
      mx::array scaled = context_->scale_add(
          mx::slice(y, {0, 0}, {rows, gates}), weights.gate_scale, nullptr);
      y = mx::slice_update(
          y, mx::astype(scaled, y.dtype()), mx::Shape{0, 0}, {rows, gates});
    }
    if (weights.activation == Activation::xielu) {
      y = xielu(weights.xielu, y);
    } else {
      y = weights.gated ? gated(weights.activation, weights.clamp, y)
                        : activate(weights.activation, y);
    }
    return multiply(step, y, *weights.down, after);
  }

  mx::array finish(const mx::array& y, const LinearOptions& options) const {
    return context_->scale_add(
        apply_norm(options.output_norm, y),
        options.output_scale,
        options.residual ? &value(*options.residual) : nullptr);
  }

  // The head sees only some rows of the step, so adapter terms on it need a
  // plan of those rows.
  mx::array head_product(
      const Step& step, const mx::array& x, const HeadArgs& args) {
    const auto& head = static_cast<const GraphLinear&>(*args.head);
    Fusions fusions{.norm = static_cast<const GraphNorm*>(args.norm)};
    if (x.shape(0) == step.num_rows()) {
      return head.apply(*context_, x, plan(step), fusions);
    }
    Step chosen;
    for (int32_t row : step.output_rows) {
      for (const Segment& segment : step.segments) {
        if (row >= segment.first_row &&
            row < segment.first_row + segment.num_rows) {
          Segment one = segment;
          one.first_row = int(chosen.tokens.size());
          one.num_rows = 1;
          one.position = segment.position + row - segment.first_row;
          chosen.segments.push_back(one);
        }
      }
      chosen.tokens.push_back(step.tokens[size_t(row)]);
    }
    Plan rows(chosen);
    return head.apply(*context_, x, rows, fusions);
  }

  std::shared_ptr<Context> context_;
  std::unique_ptr<Plan> plan_;
  int waiting_ops_ = 0;  // linears, MLPs and mixtures not yet started
};

}  // namespace

}  // namespace mlxcel::graph

namespace {

// Settings that MLX reads once from the environment; the user's own stay.
void configure_mlx() {
  // f32 means f32: without this the GPU rounds inputs of f32 products to 10
  // bits of mantissa.
  setenv("MLX_ENABLE_TF32", "0", 0);
  // MLX keeps kernels that it compiles at run time in a shared temporary
  // folder, where anybody could put others in their place.
  namespace fs = std::filesystem;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  fs::path folder;
  if (cache && *cache) {
    folder = cache;
  } else if (home && *home) {
    folder = fs::path(home) / ".cache";
  } else {
    return;
  }
  folder /= "mlxcel/kernels";
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (!failed) {
    fs::permissions(folder, fs::perms::owner_all, failed);
    setenv("MLX_PTX_CACHE_DIR", folder.c_str(), 0);
  }
}

}  // namespace

// Makes the backend. Throws mlxcel::Error.
extern "C" __attribute__((visibility("default"))) void
mlxcel_make_graph_backend(
    const mlxcel::BackendOptions* options, mlxcel::Backend** out) {
  try {
    if (mlx::core::is_available(mlx::core::Device::gpu)) {
      configure_mlx();
    }
    *out = new mlxcel::graph::GraphBackend(*options);
  } catch (const mlxcel::Error&) {
    throw;
  } catch (const std::exception& error) {
    throw mlxcel::Error(
        "cannot start the graph backend", error.what(), "use --backend cpu");
  }
}

// Whether MLX sees a GPU. Never throws.
extern "C" __attribute__((visibility("default"))) bool mlxcel_graph_has_gpu() {
  try {
    return mlx::core::is_available(mlx::core::Device::gpu);
  } catch (...) {
    return false;
  }
}
