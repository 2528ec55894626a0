// The mixture of experts: a router, the experts it chooses, and an expert for
// every row where the model has one.
#include "models/parts.h"
#include "ops/ops.h"

namespace mlxcel {

namespace {

class Moe : public Sublayer {
 public:
  Moe(const PartBuilder& builder, const MoeSpec& spec, int layer) {
    auto role = [&](std::string_view kind) {
      return cat("layers.", layer, ".moe.", kind);
    };
    router_ = builder.linear({role("router")}, false);
    up_ = builder.experts(layer, spec.experts, {"gate", "up"});
    down_ = builder.experts(layer, spec.experts, {"down"});
    weights_ = {
        .router = router_.get(),
        .routing = spec.routing,
        .experts_per_token = spec.experts_per_token,
        .up = up_.get(),
        .down = down_.get(),
        .activation = spec.activation};
    if (spec.selection_bias == SelectionBias::stored) {
      weights_.selection_bias.resize(size_t(spec.experts));
      read_as_f32(
          builder.tensor(
              role("selection_bias"), {{spec.experts}, {1, spec.experts}}),
          weights_.selection_bias.data());
    }
    if (spec.shared_intermediate_size > 0) {
      shared_up_ =
          builder.linear({role("shared.gate"), role("shared.up")}, false);
      shared_down_ = builder.linear({role("shared.down")}, false);
      if (spec.shared_gate == SharedGate::sigmoid) {
        shared_gate_ = builder.linear({role("shared_gate")}, false);
      }
      weights_.shared = {
          .up = shared_up_.get(),
          .down = shared_down_.get(),
          .activation = spec.activation};
      weights_.shared_gate = shared_gate_.get();
    }
  }

  Tensor forward(const Flow& flow, const Tensor& x, const LinearOptions& around)
      const override {
    return ops::moe(flow.backend, flow.step, x, weights_, around);
  }

 private:
  std::unique_ptr<Linear> router_, shared_up_, shared_down_, shared_gate_;
  std::unique_ptr<Experts> up_, down_;
  MoeWeights weights_;
};

}  // namespace

std::unique_ptr<Sublayer> make_moe(
    const PartBuilder& builder, const MoeSpec& spec, int layer) {
  return std::make_unique<Moe>(builder, spec, layer);
}

}  // namespace mlxcel
