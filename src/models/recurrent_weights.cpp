#include "models/recurrent_weights.h"

#include <cmath>

namespace mlxcel {

std::vector<float> read_numbers(
    const PartBuilder& builder,
    const std::string& role,
    const std::vector<Shape>& shapes) {
  WeightTensor tensor = builder.tensor(role, shapes);
  std::vector<float> numbers(size_t(element_count(tensor.shape)));
  read_as_f32(tensor, numbers.data());
  return numbers;
}

ConstantsPtr vector_constants(
    const PartBuilder& builder, const std::string& role, int64_t size) {
  return builder.backend().prepare_constants(
      read_numbers(builder, role, {{size}}));
}

std::vector<float> read_decay_rates(
    const PartBuilder& builder,
    const std::string& role,
    const std::vector<Shape>& shapes) {
  std::vector<float> rates = read_numbers(builder, role, shapes);
  for (float& rate : rates) {
    rate = -std::exp(rate);
  }
  return rates;
}

ConvolutionWeights build_convolution(
    const PartBuilder& builder,
    const std::string& role,
    const ConvolutionSpec& spec,
    const std::vector<float>& factors) {
  int64_t taps = spec.taps, channels = spec.channels;
  std::vector<float> numbers = read_numbers(
      builder,
      role,
      {{channels, 1, taps}, {channels, taps, 1}, {channels, taps}});
  for (size_t i = 0; i < numbers.size() && !factors.empty(); ++i) {
    numbers[i] *= factors[i / size_t(taps)];
  }
  ConvolutionWeights out = make_convolution(builder, numbers, spec);
  if (spec.bias) {
    out.bias = vector_constants(builder, role + "_bias", channels);
    out.args.bias = out.bias.get();
  }
  return out;
}

ConvolutionWeights make_convolution(
    const PartBuilder& builder,
    const std::vector<float>& by_channel,
    const ConvolutionSpec& spec) {
  size_t taps = size_t(spec.taps), channels = size_t(spec.channels);
  std::vector<float> by_tap(by_channel.size());
  for (size_t c = 0; c < channels; ++c) {
    for (size_t j = 0; j < taps; ++j) {
      by_tap[j * channels + c] = by_channel[c * taps + j];
    }
  }
  ConvolutionWeights out;
  out.weight = builder.backend().prepare_constants(std::move(by_tap));
  out.args = {
      .weight = out.weight.get(), .taps = spec.taps, .channels = spec.channels};
  return out;
}

void append_convolution_roles(
    const std::string& kind,
    const ConvolutionSpec& spec,
    std::vector<RoleShape>& out) {
  out.push_back({kind, spec.channels, 0, {}});
  if (spec.bias) {
    out.push_back({kind + "_bias", spec.channels, 0, {}});
  }
}

}  // namespace mlxcel
