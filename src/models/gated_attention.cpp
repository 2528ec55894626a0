#include "models/gated_attention.h"

#include "models/recurrent_weights.h"
#include "ops/ops.h"

namespace mlxcel {

namespace {

// More than any published model has.
constexpr int kMaxHeads = 256;

std::string head_role(const char* kind, int head) {
  return cat("attention.", kind, ".", head);
}

class GatedAttention : public Sublayer {
 public:
  GatedAttention(
      const PartBuilder& builder,
      const AttentionSpec& spec,
      const NormSpec& norm,
      int layer)
      : layer_(layer), rope_(builder.rope(spec.rope.get())) {
    std::string prefix = cat("layers.", layer, ".");
    std::vector<std::string> roles;
    auto add_heads = [&](const char* kind) {
      for (int head = 0; head < spec.heads.query; ++head) {
        roles.push_back(prefix + head_role(kind, head));
      }
    };
    add_heads("q");
    roles.push_back(prefix + "attention.k");
    roles.push_back(prefix + "attention.v");
    add_heads("gate");
    bool bias = spec.bias == AttentionBias::all;
    in_ = builder.linear(roles, bias);
    output_ = builder.linear({prefix + "attention.o"}, bias);
    q_norm_ = builder.norm(prefix + "attention.q_norm", norm);
    k_norm_ = builder.norm(prefix + "attention.k_norm", norm);
    args_ = {
        .num_heads = spec.heads.query,
        .num_kv_heads = spec.heads.key_value,
        .head_dim = spec.heads.dim,
        .scale = spec.scale,
        .window = spec.window,
        .rope = rope_.get(),
        .q_norm = q_norm_.get(),
        .k_norm = k_norm_.get(),
        .gated = true};
  }

  Tensor forward(const Flow& flow, const Tensor& x, const LinearOptions& around)
      const override {
    Tensor in =
        ops::linear(flow.backend, flow.step, x, *in_, {.norm = around.norm});
    Tensor y =
        ops::attention(flow.backend, flow.step, in, args_, flow.cache, layer_);
    return ops::linear(
        flow.backend, flow.step, y, *output_, after_mixer(around));
  }

 private:
  int layer_;
  std::shared_ptr<const Rope> rope_;
  std::unique_ptr<Linear> in_, output_;
  std::unique_ptr<Norm> q_norm_, k_norm_;
  AttentionArgs args_;
};

}  // namespace

std::vector<RoleShape> GatedAttentionSpec::roles(int64_t hidden_size) const {
  const HeadCounts& heads = attention.heads;
  int64_t kv_rows = int64_t(heads.key_value) * heads.dim;
  std::vector<RoleShape> out;
  auto add_heads = [&](const char* kind) {
    for (int head = 0; head < heads.query && head < kMaxHeads; ++head) {
      out.push_back(
          {head_role(kind, head), heads.dim, hidden_size, "attention.qkv"});
    }
  };
  add_heads("q");
  out.push_back({"attention.k", kv_rows, hidden_size, "attention.qkv"});
  out.push_back({"attention.v", kv_rows, hidden_size, "attention.qkv"});
  add_heads("gate");
  out.push_back({"attention.q_norm", heads.dim, 0, {}});
  out.push_back({"attention.k_norm", heads.dim, 0, {}});
  out.push_back(
      {"attention.o", hidden_size, int64_t(heads.query) * heads.dim, {}});
  return out;
}

KvLayerSpec GatedAttentionSpec::cache() const {
  const HeadCounts& heads = attention.heads;
  return {heads.key_value, heads.dim, heads.dim};
}

int64_t GatedAttentionSpec::columns() const {
  const HeadCounts& heads = attention.heads;
  return int64_t(3 * heads.query + 2 * heads.key_value) * heads.dim;
}

std::unique_ptr<Sublayer> GatedAttentionSpec::build(
    const PartBuilder& builder, const BlockSpec& block, int layer) const {
  return std::make_unique<GatedAttention>(
      builder, attention, block.norm, layer);
}

NameRule queries_and_gates(std::string stem) {
  std::vector<std::string> roles;
  for (int head = 0; head < kMaxHeads; ++head) {
    roles.push_back("layers.{l}." + head_role("q", head));
    roles.push_back("layers.{l}." + head_role("gate", head));
  }
  return split_rows(std::move(stem), std::move(roles));
}

}  // namespace mlxcel
