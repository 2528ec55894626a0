// Brings a checkpoint's tensors into the one form that surgery, adapters and
// models expect, under the checkpoint's own keys.
#pragma once

#include "io/config.h"
#include "io/weight_map.h"
#include "models/family.h"
#include "models/names.h"

#include <cstdint>
#include <string>
#include <vector>

namespace mlxcel {

// Whether the tensors' bytes may be read.
enum class TensorData : uint8_t { readable, headers_only };

// In this order:
//   a vision tower that the config leaves unused is dropped;
//   f64 tensors become f32: no backend computes in f64;
//   matrices that the family's publisher stores [in, out] are turned;
//   experts that it stores in one tensor are spread over their parts
//     (expert_stacks.h);
//   under a tied head every spelling of the family finds a head: where the
//     checkpoint has none, the head's keys share the embedding's tensors. A
//     stored head is kept, with a warning when it differs from the embedding.
// From headers alone, f64 tensors only get the dtype that they are narrowed to,
// and a stored head is not compared.
void sanitize_weights(
    const Config& config,
    const NameMap& names,
    WeightMap& weights,
    TensorData data = TensorData::readable);

// Checks that every stored format can be read, before any tensor is looked up.
// Throws CheckpointError for FP8 weights without their scales, ConfigError for
// methods of other tools (QuantConfig), and CheckpointError for parts of a
// packed weight without their whole: scales or biases without a weight, and
// packed words alone.
void check_formats(const WeightMap& weights, const Config& config);

// The dtype activations are computed in: that of the embedding table, or of
// its scales when it is packed; it carries the residual stream.
DType activation_dtype_of(const NameMap& names, const WeightMap& weights);

}  // namespace mlxcel
