// What the recurrent mixers read beside their projections.
#pragma once

#include "models/parts.h"

#include <memory>
#include <string>
#include <vector>

namespace mlxcel {

using ConstantsPtr = std::unique_ptr<Constants>;

// A small tensor as f32 numbers, in the order in which it is stored.
std::vector<float> read_numbers(
    const PartBuilder& builder,
    const std::string& role,
    const std::vector<Shape>& shapes);

// The numbers of a vector.
ConstantsPtr vector_constants(
    const PartBuilder& builder, const std::string& role, int64_t size);

// -exp of a vector "A_log": the rates of decay.
std::vector<float> read_decay_rates(
    const PartBuilder& builder,
    const std::string& role,
    const std::vector<Shape>& shapes);

// A depthwise convolution with what the backend holds for it. Stored as
// [channels, 1, taps] as published, or [channels, taps, 1] by MLX.
struct ConvolutionWeights {
  Convolution args;  // its state is set by the mixer
  ConstantsPtr weight, bias;
};

struct ConvolutionSpec {
  int taps = 0;
  int64_t channels = 0;
  bool bias = false;
};

// Role `role`, and `role`_bias. `factors` [channels] multiply the inputs;
// empty: ones.
ConvolutionWeights build_convolution(
    const PartBuilder& builder,
    const std::string& role,
    const ConvolutionSpec& spec,
    const std::vector<float>& factors = {});

// The same of weights [channels][taps] that were read already, without a bias.
ConvolutionWeights make_convolution(
    const PartBuilder& builder,
    const std::vector<float>& by_channel,
    const ConvolutionSpec& spec);

// Roles of a convolution's tensors.
void append_convolution_roles(
    const std::string& kind,
    const ConvolutionSpec& spec,
    std::vector<RoleShape>& out);

// `around` for a mixer's last projection: the norm was applied before.
inline LinearOptions after_mixer(const LinearOptions& around) {
  LinearOptions after = around;
  after.norm = nullptr;
  return after;
}

}  // namespace mlxcel
