// The mixture of experts: a router, the experts it chooses, and an expert for
// every row where the model has one.
#include "models/moe.h"

#include "ops/ops.h"

#include <utility>

namespace mlxcel {

namespace {

// The parts of an MLP's first linear.
std::vector<std::string> inner_parts(
    const MlpSpec& spec, const std::string& prefix) {
  if (spec.kind == MlpKind::plain) {
    return {prefix + "up"};
  }
  return {prefix + "gate", prefix + "up"};
}

class MoeHalf : public Sublayer {
 public:
  MoeHalf(const PartBuilder& builder, const MoeSpec& spec, int layer)
      : moe_(builder, spec, layer) {}

  Tensor forward(const Flow& flow, const Tensor& x, const LinearOptions& around)
      const override {
    return moe_.forward(flow, x, around);
  }

 private:
  Moe moe_;
};

}  // namespace

Moe::Moe(
    const PartBuilder& builder,
    const MoeSpec& spec,
    int layer,
    std::vector<float> share_scale) {
  auto role = [&](std::string_view kind) {
    return cat("layers.", layer, ".moe.", kind);
  };
  const MlpSpec& expert = spec.expert;
  const bool bias = expert.bias == MlpBias::all;
  router_ = builder.linear({role("router")}, biases_logits(spec.router_bias));
  up_ = builder.experts(layer, spec.experts, inner_parts(expert, ""), bias);
  down_ = builder.experts(layer, spec.experts, {"down"}, bias);
  weights_ = {
      .router = router_.get(),
      .routing = spec.routing,
      .experts_per_token = spec.experts_per_token,
      .identity_experts = spec.identity_experts,
      .share_scale = std::move(share_scale),
      .up = up_.get(),
      .down = down_.get(),
      .activation = expert.activation,
      .gated = expert.kind == MlpKind::gated,
      .clamp = expert.clamp};
  if (biases_selection(spec.router_bias)) {
    int64_t routes = int64_t(spec.experts) + spec.identity_experts;
    weights_.selection_bias.resize(size_t(routes));
    read_as_f32(
        builder.tensor(role("selection_bias"), {{routes}, {1, routes}}),
        weights_.selection_bias.data());
  }
  if (spec.shared.intermediate_size > 0) {
    const bool shared_bias = spec.shared.bias == MlpBias::all;
    shared_up_ =
        builder.linear(inner_parts(spec.shared, role("shared.")), shared_bias);
    shared_down_ = builder.linear({role("shared.down")}, shared_bias);
    if (spec.shared_gate == SharedGate::sigmoid) {
      shared_gate_ = builder.linear({role("shared_gate")}, false);
    }
    weights_.shared = {
        .up = shared_up_.get(),
        .down = shared_down_.get(),
        .activation = spec.shared.activation,
        .gated = spec.shared.kind == MlpKind::gated,
        .clamp = spec.shared.clamp};
    weights_.shared_gate = shared_gate_.get();
  }
}

Tensor Moe::logits(const Flow& flow, const Tensor& x, const Norm* norm) const {
  return ops::linear(flow.backend, flow.step, x, *router_, {.norm = norm});
}

Tensor Moe::forward(
    const Flow& flow,
    const Tensor& x,
    const LinearOptions& around,
    const Tensor* logits) const {
  if (logits == nullptr) {
    return ops::moe(flow.backend, flow.step, x, weights_, around);
  }
  MoeWeights weights = weights_;
  weights.logits = logits;
  return ops::moe(flow.backend, flow.step, x, weights, around);
}

std::unique_ptr<Sublayer> make_moe(
    const PartBuilder& builder, const MoeSpec& spec, int layer) {
  return std::make_unique<MoeHalf>(builder, spec, layer);
}

}  // namespace mlxcel
