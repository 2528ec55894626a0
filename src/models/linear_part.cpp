#include "models/linear_part.h"

#include "core/error.h"
#include "models/parts.h"
#include "ops/ops.h"

namespace mlxcel {

namespace {

class LinearHalf : public Sublayer {
 public:
  explicit LinearHalf(std::unique_ptr<Linear> weight)
      : weight_(std::move(weight)) {}

  Tensor forward(const Flow& flow, const Tensor& x, const LinearOptions& around)
      const override {
    return ops::linear(flow.backend, flow.step, x, *weight_, around);
  }

 private:
  std::unique_ptr<Linear> weight_;
};

}  // namespace

std::vector<RoleShape> LinearPart::roles(int64_t hidden_size) const {
  return {{role_, hidden_size, hidden_size, {}}};
}

std::unique_ptr<Sublayer> LinearPart::build(
    const PartBuilder& builder, const BlockSpec&, int layer) const {
  return std::make_unique<LinearHalf>(
      builder.linear({cat("layers.", layer, ".", role_)}, biased_));
}

}  // namespace mlxcel
