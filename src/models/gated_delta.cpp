#include "models/gated_delta.h"

#include "core/error.h"
#include "ops/ops.h"

#include <algorithm>

namespace mlxcel {

namespace {

// One tensor's channels. Transformers cuts its fused tensor in three equal
// parts where it writes them apart, so only the sum of channels is sure.
std::vector<float> read_split_convolution(
    const PartBuilder& builder,
    const std::string& role,
    const DeltaHeads& heads,
    int64_t taps) {
  int64_t left = 2 * heads.keys() + heads.values();
  int64_t third = (left + 2) / 3;
  std::vector<float> all;
  for (const auto& [part, own] :
       {std::pair<std::string, int64_t>{"_q", heads.keys()},
        {"_k", heads.keys()},
        {"_v", heads.values()}}) {
    std::vector<Shape> shapes;
    for (int64_t count : {own, std::min(third, left), left}) {
      shapes.insert(
          shapes.end(), {{count, 1, taps}, {count, taps, 1}, {count, taps}});
    }
    std::vector<float> numbers = read_numbers(builder, role + part, shapes);
    left -= int64_t(numbers.size()) / taps;
    all.insert(all.end(), numbers.begin(), numbers.end());
  }
  if (left != 0) {
    throw CheckpointError(
        cat("the convolutions of ", role, " have the wrong size"),
        cat("they miss ", left, " channels of q, k and v together"),
        "check the linear head sizes in config.json");
  }
  return all;
}

class GatedDeltaMixer : public Sublayer {
 public:
  GatedDeltaMixer(
      const PartBuilder& builder, const GatedDeltaSpec& spec, int layer)
      : layer_(layer), role_(cat("layers.", layer, ".delta.")) {
    const DeltaHeads& heads = spec.heads;
    op_ = {
        .key_heads = heads.key_heads,
        .value_heads = heads.value_heads,
        .key_dim = heads.key_dim,
        .value_dim = heads.value_dim,
        .beta_scale = spec.beta_scale,
        .state = 0};
    make_projections(builder, spec);
    make_convolution(builder, spec);
    make_decay(builder, spec);
    norm_ = vector_constants(builder, role_ + "norm", heads.value_dim);
    op_.norm = {
        .gate = spec.gate,
        .weight = norm_.get(),
        .group = heads.value_dim,
        .eps = spec.norm_eps};
    out_ = builder.linear({role_ + "out"}, false);
  }

  Tensor forward(const Flow& flow, const Tensor& x, const LinearOptions& around)
      const override {
    auto apply = [&](const Tensor& input, const Linear& linear, bool norm) {
      return ops::linear(
          flow.backend,
          flow.step,
          input,
          linear,
          {.norm = norm ? around.norm : nullptr});
    };
    Tensor projection = apply(x, *in_, true);
    Tensor decay = projection, gate = projection;
    if (decay_low_) {
      decay = apply(apply(x, *decay_low_, true), *decay_, false);
      gate = apply(apply(x, *gate_low_, true), *gate_, false);
    }
    GatedDelta op = op_;
    op.projection = &projection;
    op.decay = &decay;
    op.gate = &gate;
    Tensor y = ops::recurrence(flow.backend, flow.step, op, flow.cache, layer_);
    return ops::linear(flow.backend, flow.step, y, *out_, after_mixer(around));
  }

 private:
  void make_projections(
      const PartBuilder& builder, const GatedDeltaSpec& spec) {
    const DeltaHeads& heads = spec.heads;
    int64_t group = heads.value_heads / heads.key_heads;
    int64_t dk = heads.key_dim, dv = group * heads.value_dim;
    int64_t keys = heads.keys(), values = heads.values();
    auto linear = [&](const std::vector<std::string>& kinds) {
      std::vector<std::string> roles;
      for (const std::string& kind : kinds) {
        roles.push_back(role_ + kind);
      }
      return builder.linear(roles, false);
    };
    if (spec.projections == DeltaProjections::packed) {
      in_ = linear({"qkvz", "ba"});
      int64_t stride = 2 * dk + 2 * dv, end = heads.key_heads * stride;
      op_.q = {0, stride};
      op_.k = {dk, stride};
      op_.v = {2 * dk, stride};
      op_.gate_columns = {2 * dk + dv, stride};
      op_.beta_columns = {end, 2 * group};
      op_.decay_columns = {end + group, 2 * group};
      return;
    }
    op_.q = {0, dk};
    op_.k = {keys, dk};
    op_.v = {2 * keys, dv};
    int64_t end = 2 * keys + values;
    if (spec.projections == DeltaProjections::separate) {
      in_ = linear({"q", "k", "v", "z", "b", "a"});
      op_.gate_columns = {end, dv};
      op_.beta_columns = {end + values, group};
      op_.decay_columns = {end + values + heads.value_heads, group};
      return;
    }
    in_ = linear({"q", "k", "v", "b"});
    decay_low_ = linear({"decay_low"});
    decay_ = linear({"decay"});
    gate_low_ = linear({"gate_low"});
    gate_ = linear({"gate"});
    op_.beta_columns = {end, group};
    op_.decay_columns = {0, group * dk};
    op_.gate_columns = {0, dv};
    op_.decay_by_channel = true;
  }

  void make_convolution(
      const PartBuilder& builder, const GatedDeltaSpec& spec) {
    ConvolutionSpec shape{
        .taps = spec.taps,
        .channels = 2 * spec.heads.keys() + spec.heads.values()};
    convolution_ =
        spec.split_convolution
            ? mlxcel::make_convolution(
                  builder,
                  read_split_convolution(
                      builder, role_ + "conv", spec.heads, spec.taps),
                  shape)
            : build_convolution(builder, role_ + "conv", shape);
    op_.convolution = convolution_.args;
    op_.convolution.state = spec.heads.values() * spec.heads.key_dim;
  }

  // With a decay a channel, each head's rate serves all of its channels.
  void make_decay(const PartBuilder& builder, const GatedDeltaSpec& spec) {
    int64_t heads = spec.heads.value_heads, channels = 1;
    if (op_.decay_by_channel) {
      channels = spec.heads.key_dim;
    }
    std::vector<float> by_head =
        read_decay_rates(builder, role_ + "a_log", {{heads}, {1, 1, heads, 1}});
    std::vector<float> rates;
    for (float rate : by_head) {
      rates.insert(rates.end(), size_t(channels), rate);
    }
    a_ = builder.backend().prepare_constants(std::move(rates));
    dt_bias_ = builder.backend().prepare_constants(read_numbers(
        builder, role_ + "dt_bias", {{heads * channels}, {heads, channels}}));
    op_.a = a_.get();
    op_.dt_bias = dt_bias_.get();
  }

  int layer_;
  std::string role_;
  std::unique_ptr<Linear> in_, out_;
  std::unique_ptr<Linear> decay_low_, decay_, gate_low_, gate_;
  ConvolutionWeights convolution_;
  ConstantsPtr a_, dt_bias_, norm_;
  GatedDelta op_;
};

}  // namespace

std::vector<RoleShape> GatedDeltaSpec::roles(int64_t hidden_size) const {
  int64_t keys = heads.keys(), values = heads.values();
  std::vector<RoleShape> out;
  auto add = [&](const std::string& kind, int64_t rows, const char* slot) {
    out.push_back({"delta." + kind, rows, hidden_size, slot});
  };
  int64_t rates = heads.value_heads;
  if (projections == DeltaProjections::packed) {
    add("qkvz", 2 * keys + 2 * values, "delta.in");
    add("ba", 2 * heads.value_heads, "delta.in");
  } else {
    add("q", keys, "delta.in");
    add("k", keys, "delta.in");
    add("v", values, "delta.in");
    if (projections == DeltaProjections::separate) {
      add("z", values, "delta.in");
      add("b", heads.value_heads, "delta.in");
      add("a", heads.value_heads, "delta.in");
    } else {
      rates *= int(heads.key_dim);
      add("b", heads.value_heads, "delta.in");
      add("decay_low", heads.value_dim, "");
      add("gate_low", heads.value_dim, "");
      out.push_back({"delta.decay", rates, heads.value_dim, {}});
      out.push_back({"delta.gate", values, heads.value_dim, {}});
    }
  }
  if (split_convolution) {
    out.push_back({"delta.conv_q", keys, 0, {}});
    out.push_back({"delta.conv_k", keys, 0, {}});
    out.push_back({"delta.conv_v", values, 0, {}});
  } else {
    out.push_back({"delta.conv", 2 * keys + values, 0, {}});
  }
  out.push_back({"delta.a_log", heads.value_heads, 0, {}});
  out.push_back({"delta.dt_bias", rates, 0, {}});
  out.push_back({"delta.norm", heads.value_dim, 0, {}});
  out.push_back({"delta.out", hidden_size, values, {}});
  return out;
}

KvLayerSpec GatedDeltaSpec::cache() const {
  int64_t channels = 2 * heads.keys() + heads.values();
  return {.state = heads.values() * heads.key_dim + (taps - 1) * channels};
}

int64_t GatedDeltaSpec::columns() const {
  return 2 * (2 * heads.keys() + heads.values()) + 4 * heads.values();
}

std::unique_ptr<Sublayer> GatedDeltaSpec::build(
    const PartBuilder& builder, const BlockSpec&, int layer) const {
  return std::make_unique<GatedDeltaMixer>(builder, *this, layer);
}

}  // namespace mlxcel
