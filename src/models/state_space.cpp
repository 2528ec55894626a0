#include "models/state_space.h"

#include "models/recurrent_mixer.h"

namespace mlxcel {

namespace {

class StateSpace : public RecurrentMixer<StateSpaceDual> {
 public:
  StateSpace(const PartBuilder& builder, const StateSpaceSpec& spec, int layer)
      : RecurrentMixer(layer) {
    auto role = [&](std::string_view kind) {
      return cat("layers.", layer, ".ssm.", kind);
    };
    const StateSpaceHeads& heads = spec.heads;
    in_ = builder.linear({role("in")}, spec.bias.in);
    out_ = builder.linear({role("out")}, spec.bias.out);
    // The convolution is linear in x, B and C.
    std::vector<float> factors(size_t(heads.inner()), spec.multipliers[1]);
    size_t shared = size_t(heads.groups * heads.state_size);
    factors.insert(factors.end(), shared, spec.multipliers[2]);
    factors.insert(factors.end(), shared, spec.multipliers[3]);
    convolution_ =
        build_convolution(builder, role("conv"), spec.convolution(), factors);
    convolution_.args.state = heads.inner() * heads.state_size;
    a_ = builder.backend().prepare_constants(
        read_decay_rates(builder, role("a_log"), {{heads.heads}}));
    d_ = vector_constants(builder, role("d"), heads.heads);
    dt_bias_ = vector_constants(builder, role("dt_bias"), heads.heads);
    if (spec.gate != GateForm::silu) {
      norm_ = vector_constants(builder, role("norm"), heads.inner());
    }
    op_ = {
        .convolution = convolution_.args,
        .heads = heads.heads,
        .groups = heads.groups,
        .head_dim = heads.head_dim,
        .state_size = heads.state_size,
        .a = a_.get(),
        .d = d_.get(),
        .dt_bias = dt_bias_.get(),
        .dt_min = spec.limits.dt_min,
        .dt_max = spec.limits.dt_max,
        .dt_scale = spec.multipliers[4],
        .z_scale = spec.multipliers[0],
        .norm = {
            .gate = spec.gate,
            .weight = norm_.get(),
            .group = heads.inner() / heads.groups,
            .eps = spec.norm_eps}};
  }

 private:
  ConvolutionWeights convolution_;
  ConstantsPtr a_, d_, dt_bias_, norm_;
};

}  // namespace

std::vector<RoleShape> StateSpaceSpec::roles(int64_t hidden_size) const {
  int64_t inner = heads.inner();
  std::vector<RoleShape> out = {
      {"ssm.in", inner + channels() + heads.heads, hidden_size, {}},
      {"ssm.a_log", heads.heads, 0, {}},
      {"ssm.d", heads.heads, 0, {}},
      {"ssm.dt_bias", heads.heads, 0, {}},
      {"ssm.out", hidden_size, inner, {}}};
  append_convolution_roles("ssm.conv", convolution(), out);
  if (gate != GateForm::silu) {
    out.push_back({"ssm.norm", inner, 0, {}});
  }
  return out;
}

KvLayerSpec StateSpaceSpec::cache() const {
  return {.state = heads.inner() * heads.state_size + (taps - 1) * channels()};
}

int64_t StateSpaceSpec::columns() const {
  return 2 * heads.inner() + 2 * channels() + heads.heads;
}

std::unique_ptr<Sublayer> StateSpaceSpec::build(
    const PartBuilder& builder, const BlockSpec&, int layer) const {
  return std::make_unique<StateSpace>(builder, *this, layer);
}

}  // namespace mlxcel
