// A mixer of three calls: one projection, a recurrence on its result, and the
// output projection.
#pragma once

#include "models/recurrent_weights.h"
#include "ops/ops.h"

namespace mlxcel {

// `Input` is the member of the op that takes the projection's result. The
// subclass fills in_, out_ and the op's other members.
template <typename Op, const Tensor* Op::* Input = &Op::projection>
class RecurrentMixer : public Sublayer {
 public:
  Tensor forward(const Flow& flow, const Tensor& x, const LinearOptions& around)
      const override {
    Tensor projection =
        ops::linear(flow.backend, flow.step, x, *in_, {.norm = around.norm});
    Op op = op_;
    op.*Input = &projection;
    Tensor y = ops::recurrence(flow.backend, flow.step, op, flow.cache, layer_);
    return ops::linear(flow.backend, flow.step, y, *out_, after_mixer(around));
  }

 protected:
  explicit RecurrentMixer(int layer) : layer_(layer) {}

  std::unique_ptr<Linear> in_, out_;
  Op op_;

 private:
  int layer_;
};

}  // namespace mlxcel
