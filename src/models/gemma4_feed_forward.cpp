#include "models/gemma4_feed_forward.h"

#include "models/per_layer_inputs.h"
#include "ops/ops.h"

namespace mlxcel {

namespace {

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
    if (spec.per_layer_size > 0) {
      tail_ = std::make_unique<PerLayerTail>(
          builder, block.norm, spec.mlp.activation, layer);
    }
    read_as_f32(
        builder.tensor(cat("layers.", layer, ".scalar"), {{1}}), &scalar_);
  }

  Tensor forward(const Flow& flow, const Tensor& x, const LinearOptions& around)
      const override {
    Tensor y = mlp_->forward(flow, x, around);
    if (tail_) {
      y = tail_->forward(flow, y, &y);
    }
    return scalar_ == 1 ? y
                        : ops::add(flow.backend, flow.step, y, y, scalar_ - 1);
  }

 private:
  std::unique_ptr<Sublayer> mlp_;
  std::unique_ptr<PerLayerTail> tail_;  // null: no input of its own
  float scalar_ = 1;
};

}  // namespace

std::vector<RoleShape> Gemma4FeedForward::roles(int64_t hidden_size) const {
  std::vector<RoleShape> out = mlp_roles(mlp, hidden_size);
  if (per_layer_size > 0) {
    add_per_layer_roles(per_layer_size, hidden_size, out);
  }
  out.push_back({"scalar", 1, 0, {}});
  return out;
}

int64_t Gemma4FeedForward::columns() const {
  return 3 * int64_t(mlp.intermediate_size);
}

std::unique_ptr<Sublayer> Gemma4FeedForward::build(
    const PartBuilder& builder, const BlockSpec& block, int layer) const {
  return std::make_unique<Gemma4Half>(builder, block, *this, layer);
}

}  // namespace mlxcel
