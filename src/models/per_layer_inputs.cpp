#include "models/per_layer_inputs.h"

#include "ops/ops.h"

#include <cmath>

namespace mlxcel {

std::unique_ptr<PerLayerInputs> PerLayerInputs::make(
    const PartBuilder& builder) {
  const DecoderSpec& spec = builder.names().spec();
  if (spec.extras.per_layer.size == 0) {
    return nullptr;
  }
  auto out = std::make_unique<PerLayerInputs>();
  out->spec_ = spec.extras.per_layer;
  out->projection_scale_ = 1 / std::sqrt(float(spec.hidden_size));
  out->table_ = builder.embedding("per_layer.table");
  out->projection_ = builder.linear({"per_layer.projection"}, false);
  NormSpec norm = spec.final_norm;
  out->norm_ = builder.norm("per_layer.norm", norm);
  return out;
}

Tensor PerLayerInputs::forward(
    Backend& backend, const Step& step, const Tensor& x) const {
  // Tokens beyond the table (of images, say) take its first row.
  Step known = step;
  for (int32_t& token : known.tokens) {
    token = token < spec_.vocab_size ? token : 0;
  }
  Tensor of_tokens =
      ops::embed(backend, known, *table_, std::sqrt(float(spec_.size)));
  Tensor projected = ops::linear(
      backend, step, x, *projection_, {.output_scale = projection_scale_});
  Tensor normed = ops::norm(backend, step, projected, *norm_);
  return ops::add(backend, step, normed, of_tokens);
}

void add_per_layer_roles(
    int size, int64_t hidden, std::vector<RoleShape>& out) {
  out.push_back({"per_layer.gate", size, hidden, {}});
  out.push_back({"per_layer.projection", hidden, size, {}});
  out.push_back({"per_layer.norm", hidden, 0, {}});
}

PerLayerTail::PerLayerTail(
    const PartBuilder& builder,
    const NormSpec& norm,
    Activation activation,
    int layer)
    : activation_(activation) {
  auto role = [&](std::string_view kind) {
    return cat("layers.", layer, ".per_layer.", kind);
  };
  gate_ = builder.linear({role("gate")}, false);
  projection_ = builder.linear({role("projection")}, false);
  norm_ = builder.norm(role("norm"), norm);
  column_ = layer * gate_->out();
}

Tensor PerLayerTail::forward(
    const Flow& flow, const Tensor& x, const Tensor* residual) const {
  Tensor gate = ops::linear(flow.backend, flow.step, x, *gate_);
  Tensor gated = ops::multiply(
      flow.backend,
      flow.step,
      gate,
      &flow.kept.per_layer,
      {.activation = activation_,
       .column = column_,
       .scale = float(std::sqrt(0.5))});
  return ops::linear(
      flow.backend,
      flow.step,
      gated,
      *projection_,
      {.output_norm = norm_.get(), .residual = residual});
}

}  // namespace mlxcel
