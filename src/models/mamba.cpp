#include "models/mamba.h"

#include "ops/ops.h"

namespace mlxcel {

namespace {

class Mamba : public Sublayer {
 public:
  Mamba(const PartBuilder& builder, const MambaSpec& spec, int layer)
      : layer_(layer), dims_(spec) {
    auto role = [&](std::string_view kind) {
      return cat("layers.", layer, ".mamba.", kind);
    };
    bool bias = spec.projection_bias;
    in_ = builder.linear({role("in")}, bias);
    dt_low_ = builder.linear({role("dt_low")}, false);
    bc_ = builder.linear({role("b"), role("c")}, false);
    dt_ = builder.linear({role("dt")}, true);
    out_ = builder.linear({role("out")}, bias);
    convolution_ = build_convolution(builder, role("conv"), spec.convolution);
    make_norms(builder, spec, role("dt_norm"), role("b_norm"), role("c_norm"));
    make_rates(builder, role("a_log"));
    d_ = vector_constants(builder, role("d"), spec.channels);
    convolution_.args.state = spec.channels * spec.state_size;
  }

  Tensor forward(const Flow& flow, const Tensor& x, const LinearOptions& around)
      const override {
    Backend& backend = flow.backend;
    const Step& step = flow.step;
    Tensor xz = ops::linear(backend, step, x, *in_, {.norm = around.norm});
    Tensor u = ops::recurrence(
        backend,
        step,
        ShortConvolution{.x = &xz, .convolution = convolution_.args},
        flow.cache,
        layer_);
    Tensor low = ops::linear(backend, step, u, *dt_low_);
    Tensor dt = ops::linear(backend, step, low, *dt_, {.norm = dt_norm_.get()});
    Tensor bc = ops::linear(backend, step, u, *bc_);
    SelectiveScan scan{
        .x = &u,
        .dt = &dt,
        .bc = &bc,
        .z = &xz,
        .z_first = dims_.channels,
        .a = a_.get(),
        .d = d_.get(),
        .channels = dims_.channels,
        .state_size = dims_.state_size,
        .b_norm = b_norm_.get(),
        .c_norm = c_norm_.get()};
    Tensor y = ops::recurrence(backend, step, scan, flow.cache, layer_);
    return ops::linear(backend, step, y, *out_, after_mixer(around));
  }

 private:
  struct Dims {
    explicit Dims(const MambaSpec& spec)
        : channels(spec.channels), state_size(spec.state_size) {}
    int64_t channels, state_size;
  };

  void make_norms(
      const PartBuilder& builder,
      const MambaSpec& spec,
      const std::string& dt,
      const std::string& b,
      const std::string& c) {
    NormSpec norm{.eps = spec.inner_eps};
    if (spec.inner_norms == InnerNorms::learned) {
      dt_norm_ = builder.norm(dt, norm);
      b_norm_ = builder.norm(b, norm);
      c_norm_ = builder.norm(c, norm);
    } else if (spec.inner_norms == InnerNorms::weightless) {
      auto make = [&](int64_t size) {
        return builder.backend().prepare_norm(
            {.size = size, .eps = spec.inner_eps});
      };
      dt_norm_ = make(spec.dt_rank);
      b_norm_ = make(spec.state_size);
      c_norm_ = make(spec.state_size);
    }
  }

  void make_rates(const PartBuilder& builder, const std::string& role) {
    size_t channels = size_t(dims_.channels), states = size_t(dims_.state_size);
    std::vector<float> by_channel =
        read_decay_rates(builder, role, {{dims_.channels, dims_.state_size}});
    std::vector<float> by_state(by_channel.size());
    for (size_t c = 0; c < channels; ++c) {
      for (size_t n = 0; n < states; ++n) {
        by_state[n * channels + c] = by_channel[c * states + n];
      }
    }
    a_ = builder.backend().prepare_constants(std::move(by_state));
  }

  int layer_;
  Dims dims_;
  std::unique_ptr<Linear> in_, dt_low_, bc_, dt_, out_;
  std::unique_ptr<Norm> dt_norm_, b_norm_, c_norm_;
  ConvolutionWeights convolution_;
  ConstantsPtr a_, d_;
};

}  // namespace

std::vector<RoleShape> MambaSpec::roles(int64_t hidden_size) const {
  std::vector<RoleShape> out = {
      {"mamba.in", 2 * channels, hidden_size, {}},
      {"mamba.dt_low", dt_rank, channels, {}},
      {"mamba.b", state_size, channels, "mamba.bc"},
      {"mamba.c", state_size, channels, "mamba.bc"},
      {"mamba.dt", channels, dt_rank, {}},
      {"mamba.a_log", channels, 0, {}},
      {"mamba.d", channels, 0, {}},
      {"mamba.out", hidden_size, channels, {}}};
  append_convolution_roles("mamba.conv", convolution, out);
  if (inner_norms == InnerNorms::learned) {
    out.push_back({"mamba.dt_norm", dt_rank, 0, {}});
    out.push_back({"mamba.b_norm", state_size, 0, {}});
    out.push_back({"mamba.c_norm", state_size, 0, {}});
  }
  return out;
}

KvLayerSpec MambaSpec::cache() const {
  return {.state = channels * (state_size + convolution.taps - 1)};
}

int64_t MambaSpec::columns() const {
  return 5 * channels + dt_rank + 2 * state_size;
}

std::unique_ptr<Sublayer> MambaSpec::build(
    const PartBuilder& builder, const BlockSpec&, int layer) const {
  return std::make_unique<Mamba>(builder, *this, layer);
}

}  // namespace mlxcel
