#include "models/gated_convolution.h"

#include "models/recurrent_mixer.h"

namespace mlxcel {

namespace {

class GatedConvolution
    : public RecurrentMixer<ShortConvolution, &ShortConvolution::x> {
 public:
  GatedConvolution(
      const PartBuilder& builder, const GatedConvolutionSpec& spec, int layer)
      : RecurrentMixer(layer) {
    std::string role = cat("layers.", layer, ".convolution.");
    in_ = builder.linear({role + "in"}, spec.bias);
    out_ = builder.linear({role + "out"}, spec.bias);
    convolution_ = build_convolution(
        builder, role + "taps", {spec.taps, spec.width, spec.bias});
    op_ = {.convolution = convolution_.args, .form = ConvolutionForm::gated};
  }

 private:
  ConvolutionWeights convolution_;
};

}  // namespace

std::vector<RoleShape> GatedConvolutionSpec::roles(int64_t hidden_size) const {
  std::vector<RoleShape> out = {
      {"convolution.in", 3 * width, hidden_size, {}},
      {"convolution.out", hidden_size, width, {}}};
  append_convolution_roles("convolution.taps", {taps, width, bias}, out);
  return out;
}

KvLayerSpec GatedConvolutionSpec::cache() const {
  return {.state = (taps - 1) * width};
}

int64_t GatedConvolutionSpec::columns() const {
  return 4 * width;
}

std::unique_ptr<Sublayer> GatedConvolutionSpec::build(
    const PartBuilder& builder, const BlockSpec&, int layer) const {
  return std::make_unique<GatedConvolution>(builder, *this, layer);
}

}  // namespace mlxcel
