// Grouped-query attention: one stacked projection, the attention op, the output
// projection.
#include "models/parts.h"
#include "ops/ops.h"

#include <cmath>

namespace mlxcel {

namespace {

// Press et al. 2021, "Train Short, Test Long", for a power of two of heads
// 2^(-8 i / heads), i from 1; other counts take every second slope of twice the
// next smaller power for the rest, as the paper's code does.
std::vector<float> alibi_slopes(int heads) {
  int whole = 1;
  while (whole * 2 <= heads) {
    whole *= 2;
  }
  std::vector<float> slopes;
  for (int i = 1; i <= whole; ++i) {
    slopes.push_back(float(std::exp2(-8.0 * i / whole)));
  }
  for (int i = 1; int(slopes.size()) < heads; i += 2) {
    slopes.push_back(float(std::exp2(-8.0 * i / (2 * whole))));
  }
  return slopes;
}

class Attention : public Sublayer {
 public:
  Attention(const PartBuilder& builder, const BlockSpec& block, int layer)
      : layer_(layer),
        shared_(block.attention.extras.shared),
        rope_(builder.rope(block.attention.rope.get())) {
    const AttentionSpec& spec = block.attention;
    args_ = {
        .num_heads = spec.heads.query,
        .num_kv_heads = spec.heads.key_value,
        .head_dim = spec.heads.dim,
        .head_order = spec.heads.order,
        .scale = spec.scale,
        .softcap = spec.softcap,
        .window = spec.window,
        .rope = rope_.get()};
    make_linears(builder, spec);
    make_norms(builder, block);
    apply(builder, spec.extras);
  }

  Tensor forward(const Flow& flow, const Tensor& x, const LinearOptions& around)
      const override {
    auto& [backend, step, cache, kept] = flow;
    Tensor qkv = ops::linear(backend, step, x, *qkv_, {.norm = around.norm});
    // The layer whose cache holds the keys, and the projection they come from.
    bool cached = shared_.kind == Sharing::cached;
    const Tensor* source = nullptr;
    if (shared_.kind == Sharing::projected) {
      source = &kept.projections.at(shared_.layer);
    } else if (keep_projection_) {
      kept.projections[layer_] = qkv;
    }
    Tensor mixed = ops::attention(
        backend,
        step,
        qkv,
        args_,
        cache,
        cached ? shared_.layer : layer_,
        source);
    LinearOptions after = around;
    after.norm = inner_norm_.get();
    return ops::linear(backend, step, mixed, *output_, after);
  }

 private:
  std::string role(std::string_view kind) const {
    return cat("layers.", layer_, ".attention.", kind);
  }

  void make_linears(const PartBuilder& builder, const AttentionSpec& spec) {
    std::vector<std::string> roles{role("q")};
    if (shared_.kind == Sharing::none) {
      roles.push_back(role("k"));
      if (!spec.extras.keys_as_values) {
        roles.push_back(role("v"));
      }
    }
    if (spec.extras.gate != OutputGate::none) {
      roles.push_back(role("gate"));
    }
    qkv_ = builder.linear(
        roles,
        spec.bias == AttentionBias::qkv || spec.bias == AttentionBias::all,
        spec.extras.gate == OutputGate::unbiased ? 1 : 0);
    output_ = builder.linear(
        {role("o")},
        spec.bias == AttentionBias::output || spec.bias == AttentionBias::all);
  }

  void make_norms(const PartBuilder& builder, const BlockSpec& block) {
    const AttentionSpec& spec = block.attention;
    NormWeights weightless{
        .kind = block.norm.kind, .size = spec.heads.dim, .eps = block.norm.eps};
    bool keys = shared_.kind != Sharing::cached;
    if (spec.qk_norm == QkNorm::weightless) {
      q_norm_ = builder.backend().prepare_norm(weightless);
      k_norm_ = builder.backend().prepare_norm(weightless);
    } else if (spec.qk_norm == QkNorm::each_head) {
      q_norm_ =
          builder.norm_of_heads(role("q_norm"), block.norm, spec.heads.query);
      k_norm_ = keys ? builder.norm_of_heads(
                           role("k_norm"), block.norm, spec.heads.key_value)
                     : nullptr;
    } else if (spec.qk_norm != QkNorm::none) {
      q_norm_ = builder.norm(role("q_norm"), block.norm);
      k_norm_ = keys ? builder.norm(role("k_norm"), block.norm) : nullptr;
    }
    if (spec.extras.value_norm) {
      v_norm_ = builder.backend().prepare_norm(weightless);
    }
    if (block.norms == NormPlacement::pre_inner) {
      inner_norm_ = builder.norm(role("inner_norm"), block.norm);
    }
    args_.q_norm = q_norm_.get();
    args_.k_norm = k_norm_.get();
    args_.v_norm = v_norm_.get();
  }

  void apply(const PartBuilder& builder, const AttentionExtras& extras) {
    args_.norm_after_rope = extras.qk_norm_order == QkNormOrder::after_rope;
    args_.query_scaling = extras.query_scaling;
    args_.gated = extras.gate != OutputGate::none;
    args_.clip = extras.clip;
    args_.sparse = extras.scores.sparse;
    if (shared_.kind == Sharing::cached) {
      args_.key_values = KeyValues::cached;
    } else if (extras.keys_as_values) {
      args_.key_values = KeyValues::from_keys;
    }
    if (extras.scores.sinks) {
      args_.sinks.resize(size_t(args_.num_heads));
      read_as_f32(
          builder.tensor(role("sinks"), {{args_.num_heads}}),
          args_.sinks.data());
    }
    if (extras.scores.alibi) {
      args_.alibi_slopes = alibi_slopes(args_.num_heads);
    }
    for (const BlockSpec& block : builder.names().spec().blocks) {
      const auto& shared = block.attention.extras.shared;
      keep_projection_ |=
          shared.kind == Sharing::projected && shared.layer == layer_;
    }
  }

  int layer_;
  SharedKeyValues shared_;
  bool keep_projection_ = false;  // a later layer takes keys and values from it
  std::shared_ptr<const Rope> rope_;
  std::unique_ptr<Linear> qkv_, output_;
  std::unique_ptr<Norm> q_norm_, k_norm_, v_norm_, inner_norm_;
  AttentionArgs args_;
};

}  // namespace

std::unique_ptr<Sublayer> make_attention(
    const PartBuilder& builder, const BlockSpec& block, int layer) {
  return std::make_unique<Attention>(builder, block, layer);
}

}  // namespace mlxcel
