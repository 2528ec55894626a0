// Reads the weights' pages in, so that the first token does not wait for the
// disk.
#pragma once

#include "io/weight_map.h"

#include <functional>
#include <vector>

namespace mlxcel {

// Whether MLXCEL_WEIGHT_MATERIALIZATION leaves pages to their first use. Unset
// or "eager": no; "lazy": yes. Throws UsageError for other values.
bool lazy_materialization();

// Touches every page of the mapped tensors, on `threads` threads (0: what the
// process may use). `progress` gets the share done, on the calling thread.
void materialize(
    const std::vector<WeightTensor>& tensors,
    int threads,
    const std::function<void(double done)>& progress = {});

}  // namespace mlxcel
