// Grouped-query attention: one stacked projection, the attention op, the output
// projection.
#include "models/parts.h"
#include "ops/ops.h"

namespace mlxcel {

namespace {

class Attention : public Sublayer {
 public:
  Attention(const PartBuilder& builder, const BlockSpec& block, int layer)
      : layer_(layer), rope_(builder.rope(block.attention.rope.get())) {
    const AttentionSpec& spec = block.attention;
    auto role = [&](std::string_view kind) {
      return cat("layers.", layer, ".attention.", kind);
    };
    qkv_ = builder.linear(
        {role("q"), role("k"), role("v")}, spec.bias != AttentionBias::none);
    output_ = builder.linear({role("o")}, spec.bias == AttentionBias::all);
    args_ = {
        .num_heads = spec.heads.query,
        .num_kv_heads = spec.heads.key_value,
        .head_dim = spec.heads.dim,
        .scale = spec.scale,
        .softcap = spec.softcap,
        .window = spec.window,
        .rope = rope_.get()};
    if (spec.qk_norm != QkNorm::none) {
      q_norm_ = builder.norm(role("q_norm"), block.norm);
      k_norm_ = builder.norm(role("k_norm"), block.norm);
      args_.q_norm = q_norm_.get();
      args_.k_norm = k_norm_.get();
    }
  }

  Tensor forward(const Flow& flow, const Tensor& x, const LinearOptions& around)
      const override {
    auto& [backend, step, cache] = flow;
    Tensor qkv = ops::linear(backend, step, x, *qkv_, {.norm = around.norm});
    Tensor mixed = ops::attention(backend, step, qkv, args_, cache, layer_);
    LinearOptions after = around;
    after.norm = nullptr;
    return ops::linear(backend, step, mixed, *output_, after);
  }

 private:
  int layer_;
  std::shared_ptr<const Rope> rope_;
  std::unique_ptr<Linear> qkv_, output_;
  std::unique_ptr<Norm> q_norm_, k_norm_;
  AttentionArgs args_;
};

}  // namespace

std::unique_ptr<Sublayer> make_attention(
    const PartBuilder& builder, const BlockSpec& block, int layer) {
  return std::make_unique<Attention>(builder, block, layer);
}

}  // namespace mlxcel
