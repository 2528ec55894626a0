// The recurrent mixers as MLX graphs, in f32. Sequences with equally many rows
// go together; tokens follow one another.
#pragma once

#include "ops/graph/kv_cache.h"

namespace mlxcel::graph {

struct GraphConstants : Constants {
  explicit GraphConstants(const std::vector<float>& numbers)
      : Constants(int64_t(numbers.size())),
        values(numbers.data(), {int_of(int64_t(numbers.size()))}) {}
  mx::array values;
};

// [rows, columns] in the type of activations.
mx::array recurrence(
    Context& context,
    const Step& step,
    const Recurrence& op,
    GraphKvCache& cache,
    int layer);

}  // namespace mlxcel::graph
