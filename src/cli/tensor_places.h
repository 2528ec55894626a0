// Where the tensors of a checkpoint go in the model of its family.
#pragma once

#include "io/weight_map.h"
#include "models/family.h"

#include <string>
#include <vector>

namespace mlxcel::cli {

// Tensors whose names differ in the numbers of layer and expert alone.
struct TensorPlace {
  std::string tensor;  // "model.layers.{}.self_attn.q_proj.weight"
  std::string role;    // "layers.{}.attention.q", or why it has none
  int count = 0;
};

// In the order of the tensors' names. Weights of an unused tower count as
// dropped.
std::vector<TensorPlace> tensor_places(
    const Family& family,
    const NameMap& names,
    const Config& config,
    const WeightMap& weights);

}  // namespace mlxcel::cli
