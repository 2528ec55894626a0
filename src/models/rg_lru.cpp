#include "models/rg_lru.h"

#include "models/recurrent_mixer.h"

#include <cmath>

namespace mlxcel {

namespace {

class RgLru : public RecurrentMixer<RealGatedRecurrence> {
 public:
  RgLru(const PartBuilder& builder, const RgLruSpec& spec, int layer)
      : RecurrentMixer(layer) {
    std::string role = cat("layers.", layer, ".rg_lru.");
    int64_t block = spec.width / spec.blocks;
    auto constants = [&](const char* kind, const std::vector<Shape>& shapes) {
      return builder.backend().prepare_constants(
          read_numbers(builder, role + kind, shapes));
    };
    Shape weight{spec.blocks, block, block};
    std::vector<Shape> bias{{spec.blocks, block}, {spec.width}};
    in_ = builder.linear({role + "y", role + "x"}, true);
    out_ = builder.linear({role + "out"}, true);
    convolution_ = build_convolution(
        builder, role + "conv", {spec.taps, spec.width, true});
    convolution_.args.state = spec.width;
    input_weight_ = constants("input_gate", {weight});
    input_bias_ = constants("input_gate_bias", bias);
    recurrent_weight_ = constants("recurrent_gate", {weight});
    recurrent_bias_ = constants("recurrent_gate_bias", bias);
    // log a = -8 softplus(parameter) r: the 8 is the paper's constant c.
    std::vector<float> decay =
        read_numbers(builder, role + "decay", {{spec.width}});
    for (float& value : decay) {
      value = float(-8 * std::log1p(std::exp(double(value))));
    }
    decay_ = builder.backend().prepare_constants(std::move(decay));
    op_ = {
        .convolution = convolution_.args,
        .blocks = spec.blocks,
        .width = spec.width,
        .input_weight = input_weight_.get(),
        .input_bias = input_bias_.get(),
        .recurrent_weight = recurrent_weight_.get(),
        .recurrent_bias = recurrent_bias_.get(),
        .decay = decay_.get()};
  }

 private:
  ConvolutionWeights convolution_;
  ConstantsPtr input_weight_, input_bias_, recurrent_weight_, recurrent_bias_;
  ConstantsPtr decay_;
};

}  // namespace

std::vector<RoleShape> RgLruSpec::roles(int64_t hidden_size) const {
  std::vector<RoleShape> out = {
      {"rg_lru.y", width, hidden_size, "rg_lru.in"},
      {"rg_lru.x", width, hidden_size, "rg_lru.in"},
      {"rg_lru.input_gate", width, 0, {}},
      {"rg_lru.input_gate_bias", width, 0, {}},
      {"rg_lru.recurrent_gate", width, 0, {}},
      {"rg_lru.recurrent_gate_bias", width, 0, {}},
      {"rg_lru.decay", width, 0, {}},
      {"rg_lru.out", hidden_size, width, {}}};
  append_convolution_roles("rg_lru.conv", {taps, width, true}, out);
  return out;
}

KvLayerSpec RgLruSpec::cache() const {
  return {.state = taps * width};
}

int64_t RgLruSpec::columns() const {
  return 4 * width;
}

std::unique_ptr<Sublayer> RgLruSpec::build(
    const PartBuilder& builder, const BlockSpec&, int layer) const {
  return std::make_unique<RgLru>(builder, *this, layer);
}

}  // namespace mlxcel
