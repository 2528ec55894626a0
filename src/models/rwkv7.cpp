#include "models/rwkv7.h"

#include "ops/ops.h"

#include <array>

namespace mlxcel {

namespace {

// A pair of matrices with a narrow middle, and what it applies there.
struct LowRank {
  std::unique_ptr<Linear> low, high;
  MlpWeights weights;

  LowRank(
      const PartBuilder& builder,
      const std::string& low_role,
      const std::string& high_role,
      Activation activation,
      bool bias)
      : low(builder.linear({low_role}, false)),
        high(builder.linear({high_role}, bias)),
        weights{
            .up = low.get(),
            .down = high.get(),
            .activation = activation,
            .gated = false} {}
};

class TimeMixing : public Sublayer {
 public:
  TimeMixing(const PartBuilder& builder, const TimeMixingSpec& spec, int layer)
      : layer_(layer) {
    std::string role = cat("layers.", layer, ".rwkv.");
    int64_t width = spec.heads * spec.head_dim;
    constexpr std::array<const char*, kMixes> names = {
        "mix_r", "mix_w", "mix_k", "mix_v", "mix_a", "mix_g"};
    for (size_t i = 0; i < kMixes; ++i) {
      mixes_[i] = builder.backend().prepare_constants(
          read_numbers(builder, role + names[i], {{1, 1, width}, {width}}));
    }
    r_ = builder.linear({role + "r"}, false);
    k_ = builder.linear({role + "k"}, false);
    v_ = builder.linear({role + "v"}, false);
    out_ = builder.linear({role + "out"}, false);
    auto pair = [&](const char* name, Activation activation, bool bias) {
      return std::make_unique<LowRank>(
          builder,
          cat(role, name, "_low"),
          cat(role, name, "_high"),
          activation,
          bias);
    };
    w_ = pair("w", Activation::tanh, true);
    a_ = pair("a", Activation::none, true);
    g_ = pair("g", Activation::sigmoid, false);
    if (!spec.first_layer) {
      v_mix_ = pair("v", Activation::none, true);
    }
    make_vectors(builder, spec, role);
  }

  Tensor forward(const Flow& flow, const Tensor& x, const LinearOptions& around)
      const override {
    auto& [backend, step, cache, kept] = flow;
    Tensor n = ops::norm(backend, step, x, *around.norm);
    Tensor delta = ops::recurrence(
        backend,
        step,
        TokenShift{.x = &n, .state = shift_state_},
        cache,
        layer_);
    std::array<Tensor, kMixes> in;
    for (size_t i = 0; i < kMixes; ++i) {
      in[i] = ops::recurrence(
          backend,
          step,
          ChannelBlend{.x = &n, .delta = &delta, .mix = mixes_[i].get()},
          cache,
          layer_);
    }
    auto& [xr, xw, xk, xv, xa, xg] = in;
    Tensor r = ops::linear(backend, step, xr, *r_);
    Tensor k = ops::linear(backend, step, xk, *k_);
    Tensor v = ops::linear(backend, step, xv, *v_);
    Tensor w = ops::mlp(backend, step, xw, w_->weights);
    Tensor a = ops::mlp(backend, step, xa, a_->weights);
    Tensor g = ops::mlp(backend, step, xg, g_->weights);
    Rwkv7 op = op_;
    op.r = &r;
    op.w = &w;
    op.k = &k;
    op.v = &v;
    op.a = &a;
    op.g = &g;
    Tensor v_mix;
    if (v_mix_) {
      v_mix = ops::mlp(backend, step, xv, v_mix_->weights);
      op.v_mix = &v_mix;
      op.v_first = &kept.projections.at(0);
    } else {
      kept.projections[0] = v;
    }
    Tensor y = ops::recurrence(backend, step, op, cache, layer_);
    return ops::linear(backend, step, y, *out_, after_mixer(around));
  }

 private:
  static constexpr size_t kMixes = 6;

  void make_vectors(
      const PartBuilder& builder,
      const TimeMixingSpec& spec,
      const std::string& role) {
    int64_t width = spec.heads * spec.head_dim;
    auto make = [&](const char* name) {
      return builder.backend().prepare_constants(read_numbers(
          builder,
          role + name,
          {{width}, {spec.heads, spec.head_dim}, {1, 1, width}}));
    };
    k_k_ = make("k_k");
    k_a_ = make("k_a");
    r_k_ = make("r_k");
    norm_ = make("norm");
    norm_bias_ = make("norm_bias");
    shift_state_ = width * spec.head_dim;
    op_ = {
        .heads = spec.heads,
        .head_dim = spec.head_dim,
        .k_k = k_k_.get(),
        .k_a = k_a_.get(),
        .r_k = r_k_.get(),
        .norm_weight = norm_.get(),
        .norm_bias = norm_bias_.get(),
        .eps = 64e-5f};  // fixed in the published code: 1e-5 times 8^2
  }

  int layer_;
  int64_t shift_state_ = 0;
  std::array<ConstantsPtr, kMixes> mixes_;
  std::unique_ptr<Linear> r_, k_, v_, out_;
  std::unique_ptr<LowRank> w_, a_, g_, v_mix_;
  ConstantsPtr k_k_, k_a_, r_k_, norm_, norm_bias_;
  Rwkv7 op_;
};

class ChannelMixing : public Sublayer {
 public:
  ChannelMixing(
      const PartBuilder& builder, const ChannelMixingSpec& spec, int layer)
      : layer_(layer), state_(spec.state) {
    std::string role = cat("layers.", layer, ".channel.");
    int64_t width = spec.hidden_size;
    mix_ = builder.backend().prepare_constants(
        read_numbers(builder, role + "mix", {{width}, {1, 1, width}}));
    key_ = builder.linear({role + "key"}, false);
    value_ = builder.linear({role + "value"}, false);
    weights_ = {
        .up = key_.get(),
        .down = value_.get(),
        .activation = Activation::relu_squared,
        .gated = false};
  }

  Tensor forward(const Flow& flow, const Tensor& x, const LinearOptions& around)
      const override {
    Tensor n = ops::norm(flow.backend, flow.step, x, *around.norm);
    Tensor delta = ops::recurrence(
        flow.backend,
        flow.step,
        TokenShift{.x = &n, .state = state_},
        flow.cache,
        layer_);
    Tensor in = ops::recurrence(
        flow.backend,
        flow.step,
        ChannelBlend{.x = &n, .delta = &delta, .mix = mix_.get()},
        flow.cache,
        layer_);
    return ops::mlp(flow.backend, flow.step, in, weights_, after_mixer(around));
  }

 private:
  int layer_;
  int64_t state_;
  ConstantsPtr mix_;
  std::unique_ptr<Linear> key_, value_;
  MlpWeights weights_;
};

}  // namespace

std::vector<RoleShape> TimeMixingSpec::roles(int64_t hidden_size) const {
  std::vector<RoleShape> out;
  int64_t width = heads * head_dim;
  for (const char* kind :
       {"mix_r", "mix_w", "mix_k", "mix_v", "mix_a", "mix_g"}) {
    out.push_back({cat("rwkv.", kind), hidden_size, 0, {}});
  }
  for (const char* kind : {"k_k", "k_a", "r_k", "norm", "norm_bias"}) {
    out.push_back({cat("rwkv.", kind), width, 0, {}});
  }
  for (const char* kind : {"r", "k", "v"}) {
    out.push_back({cat("rwkv.", kind), width, hidden_size, {}});
  }
  out.push_back({"rwkv.out", hidden_size, width, {}});
  auto pair = [&](const char* name, int64_t rank) {
    out.push_back({cat("rwkv.", name, "_low"), rank, hidden_size, {}});
    out.push_back({cat("rwkv.", name, "_high"), width, rank, {}});
  };
  pair("w", ranks.w);
  pair("a", ranks.a);
  pair("g", ranks.g);
  if (!first_layer) {
    pair("v", ranks.v);
  }
  return out;
}

KvLayerSpec TimeMixingSpec::cache() const {
  return {.state = heads * head_dim * (head_dim + 1) + state_after};
}

int64_t TimeMixingSpec::columns() const {
  return 20 * heads * head_dim;
}

std::unique_ptr<Sublayer> TimeMixingSpec::build(
    const PartBuilder& builder, const BlockSpec&, int layer) const {
  return std::make_unique<TimeMixing>(builder, *this, layer);
}

std::vector<RoleShape> ChannelMixingSpec::roles(int64_t hidden) const {
  return {
      {"channel.mix", hidden, 0, {}},
      {"channel.key", intermediate_size, hidden, {}},
      {"channel.value", hidden, intermediate_size, {}}};
}

int64_t ChannelMixingSpec::columns() const {
  return 3 * hidden_size + intermediate_size;
}

std::unique_ptr<Sublayer> ChannelMixingSpec::build(
    const PartBuilder& builder, const BlockSpec&, int layer) const {
  return std::make_unique<ChannelMixing>(builder, *this, layer);
}

}  // namespace mlxcel
