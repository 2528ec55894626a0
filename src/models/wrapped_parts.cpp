#include "models/wrapped_parts.h"

#include "ops/ops.h"

#include <algorithm>

namespace mlxcel {

namespace {

BlockSpec half_of(BlockSpec block, NormedResidualSpec::Half half) {
  block.halves = half == NormedResidualSpec::Half::mixer
                     ? Halves::mixer_only
                     : Halves::feed_forward_only;
  return block;
}

// A block's roles but its norms, which the block around it has.
std::vector<RoleShape> inner_roles(const BlockSpec& block, int64_t hidden) {
  std::vector<RoleShape> roles = roles_of(block, hidden);
  std::erase_if(roles, [](const RoleShape& role) {
    return role.kind == "attention_norm" || role.kind == "mlp_norm";
  });
  return roles;
}

BlockSpec attention_block(const AttentionSpec& attention) {
  BlockSpec block;
  block.attention = attention;
  block.halves = Halves::mixer_only;
  return block;
}

int64_t attention_columns(const AttentionSpec& attention) {
  const HeadCounts& heads = attention.heads;
  return int64_t(2 * heads.query + 2 * heads.key_value) * heads.dim;
}

// factor * x, f32
Tensor scaled(const Flow& flow, const Tensor& x, float factor) {
  return factor == 1 ? x : ops::add(flow.backend, flow.step, x, x, factor - 1);
}

class ParallelMixer : public Sublayer {
 public:
  ParallelMixer(
      const PartBuilder& builder,
      const ParallelMixerSpec& spec,
      const BlockSpec& block,
      int layer)
      : mixer_in_(spec.mixer_in),
        mixer_scale_(spec.mixer_scale),
        attention_in_(spec.attention_in),
        attention_scale_(spec.attention_scale) {
    BlockSpec inner = block;
    inner.mixer = nullptr;
    inner.attention = spec.attention;
    attention_ = make_attention(builder, inner, layer);
    mixer_ = spec.mixer->build(builder, block, layer);
  }

  Tensor forward(const Flow& flow, const Tensor& x, const LinearOptions& around)
      const override {
    Tensor normed = ops::norm(flow.backend, flow.step, x, *around.norm);
    LinearOptions first{
        .residual = around.residual,
        .output_scale = around.output_scale * mixer_scale_};
    Tensor sum = mixer_->forward(flow, scaled(flow, normed, mixer_in_), first);
    LinearOptions second{
        .residual = &sum,
        .output_scale = around.output_scale * attention_scale_};
    return attention_->forward(
        flow, scaled(flow, normed, attention_in_), second);
  }

 private:
  float mixer_in_, mixer_scale_, attention_in_, attention_scale_;
  std::unique_ptr<Sublayer> mixer_, attention_;
};

class NormedResidual : public Sublayer {
 public:
  NormedResidual(
      const PartBuilder& builder, const NormedResidualSpec& spec, int layer)
      : alpha_(spec.alpha), beta_(spec.beta) {
    const BlockSpec& block = spec.block;
    if (spec.half == NormedResidualSpec::Half::mixer) {
      inner_ = block.mixer ? block.mixer->build(builder, block, layer)
                           : make_attention(builder, block, layer);
    } else if (block.feed_forward) {
      inner_ = block.feed_forward->build(builder, block, layer);
    } else {
      inner_ = block.moe ? make_moe(builder, *block.moe, layer)
                         : make_mlp(builder, block, layer);
    }
  }

  Tensor forward(const Flow& flow, const Tensor& x, const LinearOptions& around)
      const override {
    Tensor normed = ops::norm(flow.backend, flow.step, x, *around.norm);
    Tensor residual = scaled(flow, normed, alpha_);
    return inner_->forward(
        flow, normed, {.residual = &residual, .output_scale = beta_});
  }

 private:
  float alpha_, beta_;
  std::unique_ptr<Sublayer> inner_;
};

class ConvolvedAttention : public Sublayer {
 public:
  ConvolvedAttention(
      const PartBuilder& builder, const ConvolvedAttentionSpec& spec, int layer)
      : layer_(layer), rope_(builder.rope(spec.attention.rope.get())) {
    const HeadCounts& heads = spec.attention.heads;
    std::string role = cat("layers.", layer, ".attention.");
    qkv_ = builder.linear({role + "q", role + "k", role + "v"}, false);
    output_ = builder.linear({role + "o"}, false);
    // One weight a head and tap, the same for all of its features.
    std::vector<float> by_channel;
    int64_t count = heads.key_value, taps = spec.taps;
    for (const char* kind : {"conv_k", "conv_v"}) {
      std::vector<float> by_head = read_numbers(
          builder, role + kind, {{1, 1, count, 1, taps}, {count, taps}});
      for (int64_t channel = 0; channel < count * heads.dim; ++channel) {
        auto from = by_head.begin() + channel / heads.dim * taps;
        by_channel.insert(by_channel.end(), from, from + taps);
      }
    }
    convolution_ = make_convolution(
        builder, by_channel, {spec.taps, 2 * count * heads.dim, false});
    first_ = int64_t(heads.query) * heads.dim;
    args_ = {
        .num_heads = heads.query,
        .num_kv_heads = heads.key_value,
        .head_dim = heads.dim,
        .scale = spec.attention.scale,
        .window = spec.attention.window,
        .rope = rope_.get()};
  }

  Tensor forward(const Flow& flow, const Tensor& x, const LinearOptions& around)
      const override {
    Tensor qkv =
        ops::linear(flow.backend, flow.step, x, *qkv_, {.norm = around.norm});
    ShortConvolution op{
        .x = &qkv,
        .convolution = convolution_.args,
        .form = ConvolutionForm::replaced,
        .first = first_};
    Tensor mixed =
        ops::recurrence(flow.backend, flow.step, op, flow.cache, layer_);
    Tensor y = ops::attention(
        flow.backend, flow.step, mixed, args_, flow.cache, layer_);
    return ops::linear(
        flow.backend, flow.step, y, *output_, after_mixer(around));
  }

 private:
  int layer_;
  int64_t first_ = 0;
  std::shared_ptr<const Rope> rope_;
  std::unique_ptr<Linear> qkv_, output_;
  ConvolutionWeights convolution_;
  AttentionArgs args_;
};

}  // namespace

std::vector<RoleShape> ParallelMixerSpec::roles(int64_t hidden_size) const {
  std::vector<RoleShape> out =
      inner_roles(attention_block(attention), hidden_size);
  std::vector<RoleShape> more = mixer->roles(hidden_size);
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

KvLayerSpec ParallelMixerSpec::cache() const {
  KvLayerSpec cache = cache_of(attention_block(attention));
  cache.state = mixer->cache().state;
  return cache;
}

int64_t ParallelMixerSpec::columns() const {
  return std::max(mixer->columns(), attention_columns(attention));
}

std::unique_ptr<Sublayer> ParallelMixerSpec::build(
    const PartBuilder& builder, const BlockSpec& block, int layer) const {
  return std::make_unique<ParallelMixer>(builder, *this, block, layer);
}

std::vector<RoleShape> NormedResidualSpec::roles(int64_t hidden_size) const {
  return inner_roles(half_of(block, half), hidden_size);
}

KvLayerSpec NormedResidualSpec::cache() const {
  return cache_of(half_of(block, half));
}

int64_t NormedResidualSpec::columns() const {
  if (half == Half::mixer) {
    return block.mixer ? block.mixer->columns()
                       : attention_columns(block.attention);
  }
  const auto& moe = block.moe;
  return moe ? int64_t(moe->experts_per_token) * 3 *
                   moe->expert.intermediate_size
             : int64_t(2) * block.mlp.intermediate_size;
}

std::unique_ptr<Sublayer> NormedResidualSpec::build(
    const PartBuilder& builder, const BlockSpec&, int layer) const {
  return std::make_unique<NormedResidual>(builder, *this, layer);
}

std::vector<RoleShape> ConvolvedAttentionSpec::roles(
    int64_t hidden_size) const {
  std::vector<RoleShape> out =
      inner_roles(attention_block(attention), hidden_size);
  out.push_back({"attention.conv_k", attention.heads.key_value, 0, {}});
  out.push_back({"attention.conv_v", attention.heads.key_value, 0, {}});
  return out;
}

KvLayerSpec ConvolvedAttentionSpec::cache() const {
  KvLayerSpec cache = cache_of(attention_block(attention));
  cache.state =
      int64_t(taps - 1) * 2 * attention.heads.key_value * attention.heads.dim;
  return cache;
}

int64_t ConvolvedAttentionSpec::columns() const {
  return 2 * attention_columns(attention);
}

std::unique_ptr<Sublayer> ConvolvedAttentionSpec::build(
    const PartBuilder& builder, const BlockSpec&, int layer) const {
  return std::make_unique<ConvolvedAttention>(builder, *this, layer);
}

}  // namespace mlxcel
