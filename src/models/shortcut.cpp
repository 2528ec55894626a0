#include "models/shortcut.h"

#include "core/error.h"
#include "models/parts.h"
#include "ops/ops.h"

#include <utility>

namespace mlxcel {

namespace {

class Shortcut : public Sublayer {
 public:
  Shortcut(
      std::unique_ptr<Sublayer> mlp,
      std::unique_ptr<Sublayer> experts,
      int layer)
      : mlp_(std::move(mlp)), experts_(std::move(experts)), layer_(layer) {}

  Tensor forward(const Flow& flow, const Tensor& x, const LinearOptions& around)
      const override {
    if (experts_) {
      flow.kept.projections[layer_] =
          experts_->forward(flow, x, {.norm = around.norm});
      return mlp_->forward(flow, x, around);
    }
    Tensor y = mlp_->forward(flow, x, around);
    return ops::add(
        flow.backend, flow.step, y, flow.kept.projections.at(layer_ - 1));
  }

 private:
  std::unique_ptr<Sublayer> mlp_,
      experts_;  // null experts: of the layer before
  int layer_;
};

// The feed-forward half's own tensors, without its norms.
std::vector<RoleShape> roles_without_norms(
    const BlockSpec& block, int64_t hidden_size) {
  std::vector<RoleShape> out = roles_of(block, hidden_size);
  std::erase_if(
      out, [](const RoleShape& role) { return role.kind == "mlp_norm"; });
  return out;
}

}  // namespace

std::vector<RoleShape> ShortcutMlp::roles(int64_t hidden_size) const {
  BlockSpec block;
  block.halves = Halves::feed_forward_only;
  block.mlp = mlp_;
  std::vector<RoleShape> out = roles_without_norms(block, hidden_size);
  if (experts_) {
    block.moe = experts_;
    for (RoleShape& role : roles_without_norms(block, hidden_size)) {
      out.push_back(std::move(role));
    }
  }
  return out;
}

int64_t ShortcutMlp::columns() const {
  int64_t inner = 2 * int64_t(mlp_.intermediate_size);
  if (experts_) {
    inner += 2 * int64_t(experts_->experts_per_token) *
             experts_->expert.intermediate_size;
  }
  return inner;
}

std::unique_ptr<Sublayer> ShortcutMlp::build(
    const PartBuilder& builder, const BlockSpec& block, int layer) const {
  if (!experts_ && layer == 0) {
    throw ConfigError(
        "a shortcut ends in the first layer",
        "there is no layer before it that begins one");
  }
  return std::make_unique<Shortcut>(
      make_mlp(builder, block, layer),
      experts_ ? make_moe(builder, *experts_, layer) : nullptr,
      layer);
}

}  // namespace mlxcel
