#include "models/latent_moe.h"

#include "models/moe.h"
#include "ops/ops.h"

#include <utility>

namespace mlxcel {

namespace {

// The mixture without the expert that serves every row.
MoeSpec routed_part(const MoeSpec& moe) {
  MoeSpec routed = moe;
  routed.shared.intermediate_size = 0;
  return routed;
}

class LatentMoe : public Sublayer {
 public:
  LatentMoe(const PartBuilder& builder, const LatentMoeSpec& spec, int layer)
      : moe_(builder, routed_part(spec.moe), layer) {
    const std::string role = cat("layers.", layer, ".moe.");
    const bool bias = spec.bias == MlpBias::all;
    in_ = builder.linear({role + "latent_in"}, bias);
    out_ = builder.linear({role + "latent_out"}, bias);
    if (const MlpSpec& shared = spec.moe.shared; shared.intermediate_size > 0) {
      const bool shared_bias = shared.bias == MlpBias::all;
      up_ = builder.linear({role + "shared.up"}, shared_bias);
      down_ = builder.linear({role + "shared.down"}, shared_bias);
      shared_ = {
          .up = up_.get(),
          .down = down_.get(),
          .activation = shared.activation,
          .gated = false};
    }
  }

  Tensor forward(const Flow& flow, const Tensor& x, const LinearOptions& around)
      const override {
    Backend& backend = flow.backend;
    const Step& step = flow.step;
    Tensor logits = moe_.logits(flow, x, around.norm);
    Tensor latent = ops::linear(backend, step, x, *in_, {.norm = around.norm});
    Tensor mixed = moe_.forward(flow, latent, {}, &logits);
    if (!up_) {
      return ops::linear(backend, step, mixed, *out_, after_norm(around));
    }
    Tensor y = ops::mlp(backend, step, x, shared_, around);
    return ops::linear(
        backend,
        step,
        mixed,
        *out_,
        {.residual = &y, .output_scale = around.output_scale});
  }

 private:
  static LinearOptions after_norm(const LinearOptions& around) {
    LinearOptions after = around;
    after.norm = nullptr;
    return after;
  }

  Moe moe_;
  std::unique_ptr<Linear> in_, out_, up_, down_;  // null up and down: no shared
  MlpWeights shared_;
};

}  // namespace

std::vector<RoleShape> LatentMoeSpec::roles(int64_t hidden_size) const {
  std::vector<RoleShape> out = moe_roles(routed_part(moe), size);
  for (RoleShape& role : out) {
    if (role.kind == "moe.router") {
      role.cols = hidden_size;
    }
  }
  out.push_back({"moe.latent_in", size, hidden_size, {}});
  out.push_back({"moe.latent_out", hidden_size, size, {}});
  if (int64_t inner = moe.shared.intermediate_size; inner > 0) {
    out.push_back({"moe.shared.up", inner, hidden_size, {}});
    out.push_back({"moe.shared.down", hidden_size, inner, {}});
  }
  return out;
}

int64_t LatentMoeSpec::columns() const {
  return 2 * int64_t(moe.experts_per_token) *
             (moe.expert.intermediate_size + size) +
         2 * int64_t(size) + 2 * int64_t(moe.shared.intermediate_size);
}

std::unique_ptr<Sublayer> LatentMoeSpec::build(
    const PartBuilder& builder, const BlockSpec&, int layer) const {
  return std::make_unique<LatentMoe>(builder, *this, layer);
}

}  // namespace mlxcel
