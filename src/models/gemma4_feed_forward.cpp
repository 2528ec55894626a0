#include "models/gemma4_feed_forward.h"

#include "models/moe.h"
#include "models/per_layer_inputs.h"
#include "ops/ops.h"

#include <cmath>
#include <utility>

namespace mlxcel {

namespace {

std::vector<float> read_vector(
    const PartBuilder& builder, const std::string& role, int64_t size) {
  std::vector<float> numbers(static_cast<size_t>(size));
  read_as_f32(builder.tensor(role, {{size}}), numbers.data());
  return numbers;
}

// Experts beside the dense MLP, each with a norm of its own on its result:
//   dense_norm(mlp(norm(x))) + output_norm(experts(input_norm(x)))
class ExpertsBeside {
 public:
  ExpertsBeside(
      const PartBuilder& builder,
      const NormSpec& norm,
      const MoeSpec& spec,
      int layer)
      : role_(cat("layers.", layer, ".")),
        moe_(
            builder,
            spec,
            layer,
            read_vector(builder, role_ + "moe.share_scale", spec.experts)) {
    dense_norm_ = builder.norm(role_ + "mlp.dense_norm", norm);
    input_norm_ = builder.norm(role_ + "moe.input_norm", norm);
    output_norm_ = builder.norm(role_ + "moe.output_norm", norm);
    make_router_norm(builder, norm);
  }

  // The whole half with its output norm and the residual. `mlp`: the dense MLP.
  Tensor forward(
      const Flow& flow,
      const Tensor& x,
      const Sublayer& mlp,
      const LinearOptions& around) const {
    Tensor dense = mlp.forward(
        flow, x, {.norm = around.norm, .output_norm = dense_norm_.get()});
    Tensor logits = moe_.logits(flow, x, router_norm_.get());
    Tensor both = moe_.forward(
        flow,
        x,
        {.norm = input_norm_.get(),
         .output_norm = output_norm_.get(),
         .residual = &dense},
        &logits);
    both = ops::norm(flow.backend, flow.step, both, *around.output_norm);
    return ops::add(flow.backend, flow.step, *around.residual, both);
  }

 private:
  // The weight times 1 / sqrt(hidden), which the router's input has too.
  void make_router_norm(const PartBuilder& builder, const NormSpec& norm) {
    const int64_t hidden = builder.names().spec().hidden_size;
    std::vector<float> scale =
        read_vector(builder, role_ + "moe.router_norm", hidden);
    std::byte* data = nullptr;
    WeightTensor weight = make_weight(DType::f32, {hidden}, &data);
    auto* values = reinterpret_cast<float*>(data);
    for (size_t i = 0; i < scale.size(); ++i) {
      values[i] = scale[i] / std::sqrt(float(hidden));
    }
    router_norm_ = builder.backend().prepare_norm(
        {.kind = norm.kind,
         .size = hidden,
         .eps = norm.eps,
         .weight = std::move(weight)});
  }

  std::string role_;
  Moe moe_;
  std::unique_ptr<Norm> dense_norm_, input_norm_, output_norm_, router_norm_;
};

class Gemma4Half : public Sublayer {
 public:
  Gemma4Half(
      const PartBuilder& builder,
      const BlockSpec& block,
      const Gemma4FeedForward& spec,
      int layer) {
    BlockSpec dense = block;
    dense.mlp = spec.mlp;
    mlp_ = make_mlp(builder, dense, layer);
    if (spec.moe) {
      experts_ = std::make_unique<ExpertsBeside>(
          builder, block.norm, *spec.moe, layer);
    }
    if (spec.per_layer_size > 0) {
      tail_ = std::make_unique<PerLayerTail>(
          builder, block.norm, spec.mlp.activation, layer);
    }
    read_as_f32(
        builder.tensor(cat("layers.", layer, ".scalar"), {{1}}), &scalar_);
  }

  Tensor forward(const Flow& flow, const Tensor& x, const LinearOptions& around)
      const override {
    Tensor y = experts_ ? experts_->forward(flow, x, *mlp_, around)
                        : mlp_->forward(flow, x, around);
    if (tail_) {
      y = tail_->forward(flow, y, &y);
    }
    return scalar_ == 1 ? y
                        : ops::add(flow.backend, flow.step, y, y, scalar_ - 1);
  }

 private:
  std::unique_ptr<Sublayer> mlp_;
  std::unique_ptr<ExpertsBeside> experts_;  // null: the MLP alone
  std::unique_ptr<PerLayerTail> tail_;      // null: no input of its own
  float scalar_ = 1;
};

}  // namespace

std::vector<RoleShape> Gemma4FeedForward::roles(int64_t hidden_size) const {
  std::vector<RoleShape> out = mlp_roles(mlp, hidden_size);
  if (moe) {
    for (RoleShape& role : moe_roles(*moe, hidden_size)) {
      out.push_back(std::move(role));
    }
    for (const char* kind :
         {"mlp.dense_norm",
          "moe.input_norm",
          "moe.output_norm",
          "moe.router_norm"}) {
      out.push_back({kind, hidden_size, 0, {}});
    }
    out.push_back({"moe.share_scale", moe->experts, 0, {}});
  }
  if (per_layer_size > 0) {
    add_per_layer_roles(per_layer_size, hidden_size, out);
  }
  out.push_back({"scalar", 1, 0, {}});
  return out;
}

int64_t Gemma4FeedForward::columns() const {
  int64_t inner = 3 * int64_t(mlp.intermediate_size);
  if (moe) {
    inner +=
        3 * int64_t(moe->experts_per_token) * moe->expert.intermediate_size;
  }
  return inner;
}

std::unique_ptr<Sublayer> Gemma4FeedForward::build(
    const PartBuilder& builder, const BlockSpec& block, int layer) const {
  return std::make_unique<Gemma4Half>(builder, block, *this, layer);
}

}  // namespace mlxcel
