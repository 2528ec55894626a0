// The dense MLP: act(gate) * up or act(up), then down.
#include "models/parts.h"
#include "ops/ops.h"

#include <algorithm>
#include <cmath>

namespace mlxcel {

namespace {

// Each number in a tensor of its own, the alphas before a softplus that keeps
// them above zero, alpha_n above beta.
Xielu stored_xielu(const PartBuilder& builder, const std::string& roles) {
  auto number = [&](const char* name) {
    float value = 0;
    read_as_f32(builder.tensor(roles + name, {{1}, {}}), &value);
    return value;
  };
  // ln(1 + e^x) without an overflow
  auto softplus = [](double x) {
    return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x)));
  };
  float beta = number("beta");
  return {
      .alpha_p = float(softplus(double(number("alpha_p")))),
      .alpha_n = float(double(beta) + softplus(double(number("alpha_n")))),
      .beta = beta,
      .eps = number("eps")};
}

class Mlp : public Sublayer {
 public:
  Mlp(const PartBuilder& builder, const BlockSpec& block, int layer) {
    const MlpSpec& spec = block.mlp;
    auto role = [&](std::string_view kind) {
      return cat("layers.", layer, ".mlp.", kind);
    };
    bool bias = spec.bias == MlpBias::all;
    std::vector<std::string> inner{role("up")};
    if (spec.kind == MlpKind::gated) {
      inner.insert(inner.begin(), role("gate"));
    }
    up_ = builder.linear(inner, bias);
    down_ = builder.linear({role("down")}, bias);
    weights_ = {
        .up = up_.get(),
        .down = down_.get(),
        .activation = spec.activation,
        .gated = spec.kind != MlpKind::plain,
        .in_turn = spec.kind == MlpKind::in_turn,
        .clamp = spec.clamp,
        .gate_scale = spec.gate_scale};
    if (spec.activation == Activation::xielu) {
      weights_.xielu = stored_xielu(builder, role("xielu."));
    }
    output_scale_ = spec.output_scale;
    if (block.norms == NormPlacement::pre_inner) {
      inner_norm_ = builder.norm(role("inner_norm"), block.norm);
      weights_.inner_norm = inner_norm_.get();
    }
  }

  Tensor forward(const Flow& flow, const Tensor& x, const LinearOptions& around)
      const override {
    LinearOptions options = around;
    options.output_scale *= output_scale_;
    return ops::mlp(flow.backend, flow.step, x, weights_, options);
  }

 private:
  std::unique_ptr<Linear> up_, down_;
  std::unique_ptr<Norm> inner_norm_;
  MlpWeights weights_;
  float output_scale_ = 1;
};

}  // namespace

std::unique_ptr<Sublayer> make_mlp(
    const PartBuilder& builder, const BlockSpec& block, int layer) {
  return std::make_unique<Mlp>(builder, block, layer);
}

}  // namespace mlxcel
