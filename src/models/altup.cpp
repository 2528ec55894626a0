#include "models/altup.h"

#include "models/per_layer_inputs.h"
#include "ops/ops.h"

#include <cmath>

namespace mlxcel {

namespace {

// The x below which a standard normal variable is with probability p, by
// bisection.
float normal_quantile(double p) {
  double low = -40, high = 40;
  for (int i = 0; i < 200; ++i) {
    double middle = (low + high) / 2;
    (std::erfc(-middle / std::sqrt(2.0)) / 2 < p ? low : high) = middle;
  }
  return float(low);
}

class AltUpSublayer : public Sublayer {
 public:
  AltUpSublayer(
      const PartBuilder& builder,
      const BlockSpec& block,
      const AltUpBlock& spec,
      int layer)
      : streams_(spec.streams),
        sparse_(spec.sparsity > 0),
        activation_(spec.mlp.activation),
        attention_(make_attention(builder, block, layer)),
        tail_(builder, block.norm, spec.mlp.activation, layer) {
    auto role = [&](std::string_view kind) {
      return cat("layers.", layer, ".", kind);
    };
    auto linear = [&](std::string_view kind) {
      return builder.linear({role(kind)}, false);
    };
    auto norm = [&](std::string_view kind) {
      return builder.norm(role(kind), block.norm);
    };
    router_ = linear("altup.router");
    router_norm_ = norm("altup.router_norm");
    predict_ = linear("altup.predict");
    correct_ = linear("altup.correct");
    if (spec.scale_corrected) {
      scale_ = builder.row(role("altup.scale"));
    }
    laurel_left_ = linear("laurel.left");
    laurel_right_ = linear("laurel.right");
    laurel_norm_ = norm("laurel.norm");
    mlp_norm_ = norm("mlp_norm");
    mlp_post_norm_ = norm("mlp_post_norm");
    if (sparse_) {
      cut_ = normal_quantile(spec.sparsity);
      up_ = builder.linear({role("mlp.gate"), role("mlp.up")}, false);
      down_ = linear("mlp.down");
    } else {
      BlockSpec dense = block;
      dense.mlp = spec.mlp;
      mlp_ = make_mlp(builder, dense, layer);
    }
  }

  Tensor forward(const Flow& flow, const Tensor&, const LinearOptions& around)
      const override {
    auto& [backend, step, cache, kept] = flow;
    std::vector<Tensor> predicted = predict(flow, kept.streams);
    const Tensor& active = predicted[size_t(streams_.active)];

    Tensor normed = ops::norm(backend, step, active, *around.norm);
    Tensor left = ops::linear(backend, step, normed, *laurel_left_);
    Tensor laurel = ops::linear(
        backend,
        step,
        left,
        *laurel_right_,
        {.output_norm = laurel_norm_.get(), .residual = &normed});
    LinearOptions attend = around;
    attend.residual = &active;
    Tensor attended = attention_->forward(flow, active, attend);
    Tensor mixed =
        scaled(flow, ops::add(backend, step, attended, laurel), M_SQRT1_2);
    Tensor result = feed_forward(flow, mixed);

    std::vector<Tensor> corrected = correct(flow, predicted, result);
    Tensor first = corrected[size_t(streams_.active)];
    if (scale_) {
      Step repeated = step;
      std::fill(repeated.tokens.begin(), repeated.tokens.end(), 0);
      Tensor factors = ops::embed(backend, repeated, *scale_);
      first = ops::multiply(backend, step, first, &factors, {});
    }
    Tensor input = tail_.forward(flow, first, nullptr);
    for (size_t i = 1; i < corrected.size(); ++i) {
      corrected[i] = ops::add(backend, step, corrected[i], input);
    }
    kept.streams = std::move(corrected);
    return kept.streams[size_t(streams_.active)];
  }

 private:
  static Tensor scaled(const Flow& flow, const Tensor& x, double factor) {
    return ops::add(flow.backend, flow.step, x, x, float(factor - 1));
  }

  // tanh(router(norm(x) / hidden)): [rows, streams]
  Tensor modalities(const Flow& flow, const Tensor& x) const {
    Tensor routed = ops::linear(
        flow.backend,
        flow.step,
        x,
        *router_,
        {.norm = router_norm_.get(), .output_scale = 1 / float(x.cols())});
    return ops::multiply(
        flow.backend,
        flow.step,
        routed,
        nullptr,
        {.activation = Activation::tanh});
  }

  // h_i + sum over k of c[i * streams + k] h_k
  std::vector<Tensor> predict(
      const Flow& flow, const std::vector<Tensor>& streams) const {
    Tensor c = ops::linear(
        flow.backend,
        flow.step,
        modalities(flow, streams[size_t(streams_.active)]),
        *predict_);
    std::vector<Tensor> out;
    for (size_t i = 0; i < streams.size(); ++i) {
      out.push_back(ops::weighted_sum(
          flow.backend,
          flow.step,
          streams[i],
          streams,
          c,
          int64_t(i * streams.size())));
    }
    return out;
  }

  // h_i + (c[i] + 1) (result - h_active)
  std::vector<Tensor> correct(
      const Flow& flow,
      const std::vector<Tensor>& predicted,
      const Tensor& result) const {
    auto& [backend, step, cache, kept] = flow;
    Tensor c = ops::linear(backend, step, modalities(flow, result), *correct_);
    std::vector<Tensor> change = {ops::add(
        backend, step, result, predicted[size_t(streams_.active)], -1)};
    std::vector<Tensor> out;
    for (size_t i = 0; i < predicted.size(); ++i) {
      out.push_back(ops::weighted_sum(
          backend,
          step,
          ops::add(backend, step, predicted[i], change[0]),
          change,
          c,
          int64_t(i)));
    }
    return out;
  }

  Tensor feed_forward(const Flow& flow, const Tensor& x) const {
    auto& [backend, step, cache, kept] = flow;
    LinearOptions around{
        .norm = mlp_norm_.get(),
        .output_norm = mlp_post_norm_.get(),
        .residual = &x};
    if (!sparse_) {
      return mlp_->forward(flow, x, around);
    }
    Tensor inner = ops::linear(backend, step, x, *up_, {.norm = around.norm});
    int64_t width = inner.cols() / 2;
    Tensor gate = ops::cut_below(backend, step, inner, width, cut_);
    Tensor gated = ops::multiply(
        backend,
        step,
        gate,
        &inner,
        {.activation = activation_, .column = width});
    around.norm = nullptr;
    return ops::linear(backend, step, gated, *down_, around);
  }

  StreamSpec streams_;
  bool sparse_;
  Activation activation_;
  float cut_ = 0;  // standard deviations
  std::unique_ptr<Sublayer> attention_, mlp_;
  PerLayerTail tail_;
  std::unique_ptr<Linear> router_, predict_, correct_, laurel_left_,
      laurel_right_, up_, down_;
  std::unique_ptr<Norm> router_norm_, laurel_norm_, mlp_norm_, mlp_post_norm_;
  std::unique_ptr<Embedding> scale_;  // one row; null: none
};

}  // namespace

std::vector<RoleShape> AltUpBlock::roles(int64_t hidden_size) const {
  int64_t count = streams.count;
  std::vector<RoleShape> out = attention_roles(attention, hidden_size);
  for (RoleShape& role : mlp_roles(mlp, hidden_size)) {
    out.push_back(std::move(role));
  }
  add_per_layer_roles(per_layer_size, hidden_size, out);
  out.push_back({"mlp_norm", hidden_size, 0, {}});
  out.push_back({"mlp_post_norm", hidden_size, 0, {}});
  out.push_back({"altup.router", count, hidden_size, {}});
  out.push_back({"altup.router_norm", hidden_size, 0, {}});
  out.push_back({"altup.predict", count * count, count, {}});
  out.push_back({"altup.correct", count, count, {}});
  if (scale_corrected) {
    out.push_back({"altup.scale", hidden_size, 0, {}});
  }
  out.push_back({"laurel.left", laurel_rank, hidden_size, {}});
  out.push_back({"laurel.right", hidden_size, laurel_rank, {}});
  out.push_back({"laurel.norm", hidden_size, 0, {}});
  return out;
}

KvLayerSpec AltUpBlock::cache() const {
  return attention_cache(attention);
}

int64_t AltUpBlock::columns() const {
  return 3 * int64_t(mlp.intermediate_size);
}

std::unique_ptr<Sublayer> AltUpBlock::build(
    const PartBuilder& builder, const BlockSpec& block, int layer) const {
  return std::make_unique<AltUpSublayer>(builder, block, *this, layer);
}

}  // namespace mlxcel
