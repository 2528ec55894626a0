// A mixture of experts with its router, for parts that put them together in
// another way than one half of a block.
#pragma once

#include "models/parts.h"

#include <memory>
#include <vector>

namespace mlxcel {

class Moe {
 public:
  // `share_scale`: see MoeWeights.
  Moe(const PartBuilder& builder,
      const MoeSpec& spec,
      int layer,
      std::vector<float> share_scale = {});

  // What the router makes of x, where it does not read what the experts read.
  Tensor logits(const Flow& flow, const Tensor& x, const Norm* norm) const;

  // y = residual + output_scale * output_norm(f(norm(x))); null logits: the
  // router reads norm(x).
  Tensor forward(
      const Flow& flow,
      const Tensor& x,
      const LinearOptions& around,
      const Tensor* logits = nullptr) const;

 private:
  std::unique_ptr<Linear> router_, shared_up_, shared_down_, shared_gate_;
  std::unique_ptr<Experts> up_, down_;
  MoeWeights weights_;
};

}  // namespace mlxcel
