// Norms and rotary embedding of the graph backend.
#pragma once

#include "ops/graph/context.h"
#include "ops/graph/plan.h"

namespace mlxcel::graph {

class GraphNorm : public Norm {
 public:
  GraphNorm(Context& context, const NormWeights& weights);
  // Normalizes the last axis, of size(); keeps x's dtype.
  mx::array apply(const mx::array& x) const;
  // For our CUDA kernels: the weight and then eps, f32 [size + 1]; null where
  // the norm is not a plain RMS norm.
  const mx::array* factors() const {
    return factors_ ? &*factors_ : nullptr;
  }

 private:
  // The same where the sums are over parts of the axis.
  mx::array apply_to_parts(const mx::array& x) const;

  NormKind kind_;
  float eps_;
  int parts_;
  bool wide_;  // the weight needs more precision than the activations have
  std::optional<mx::array> weight_, bias_;
  std::optional<mx::array> factors_;
};

class GraphRope : public Rope {
 public:
  GraphRope(Context& context, const RopeTable& table);
  // x: [rows, heads, head_dim], one row a token of the step.
  mx::array apply(const mx::array& x, const Plan& plan) const;
  // For our CUDA kernels: the periods and then what the turned dimensions are
  // multiplied by, f32 [dims / 2 + 1]; null where it depends on the length.
  const mx::array* factors() const {
    return factors_ ? &*factors_ : nullptr;
  }
  bool interleaved() const {
    return interleaved_;
  }

 private:
  struct Factors {
    mx::array periods;  // 1 / inv_freq, f32 [dims / 2]
    float scale;
  };
  mx::array rotate(
      const mx::array& x,
      const mx::array& positions,
      const Factors& factors) const;
  mx::array rotate_by_parts(
      const mx::array& x,
      const mx::array& positions,
      const mx::array& periods) const;

  bool interleaved_;
  bool by_parts_;
  int64_t switch_length_;
  Factors short_, long_;
  std::optional<mx::array> factors_;
};

}  // namespace mlxcel::graph
