// Gemma's per-layer inputs: beside the embedding, each layer gets a small
// vector of its own a token, from a table and from a projection of the
// embedding.
#pragma once

#include "models/parts.h"

namespace mlxcel {

// All layers' vectors of the step's rows, [rows, layers * size]:
//   norm(projection(x) / sqrt(hidden)) + sqrt(size) table[token]
class PerLayerInputs {
 public:
  // Null when the spec has none.
  static std::unique_ptr<PerLayerInputs> make(const PartBuilder& builder);
  Tensor forward(Backend& backend, const Step& step, const Tensor& x) const;

 private:
  PerLayerInputSpec spec_;
  float projection_scale_ = 0;
  std::unique_ptr<Embedding> table_;
  std::unique_ptr<Linear> projection_;
  std::unique_ptr<Norm> norm_;
};

// Roles of the layers' part: per_layer.gate, .projection and .norm.
void add_per_layer_roles(int size, int64_t hidden, std::vector<RoleShape>& out);

// What a layer makes of its vector v:
//   f(x) = norm(projection(act(gate x) * v / sqrt(2)))
class PerLayerTail {
 public:
  PerLayerTail(
      const PartBuilder& builder,
      const NormSpec& norm,
      Activation activation,
      int layer);
  Tensor forward(
      const Flow& flow, const Tensor& x, const Tensor* residual) const;

 private:
  Activation activation_;
  int64_t column_;  // of the layer's vector
  std::unique_ptr<Linear> gate_, projection_;
  std::unique_ptr<Norm> norm_;
};

}  // namespace mlxcel
