// interpolate: a blend of two sources' tensors of the same key, written in the
// base's dtype. The base gives the shape only.
#include "surgery/planner.h"

namespace mlxcel {

void plan_interpolate(Planner& planner) {
  const Operation& operation = planner.operation();
  for (const std::string& key : planner.matched()) {
    auto [stem, suffix] = split_key(key);
    bool packed = suffix == "weight" && planner.packed(stem);
    if (packed && !operation.requantize) {
      planner.require_float(key, "interpolated");
    }
    if (operation.requantize && planner.edited_with_weight(key)) {
      continue;
    }
    const WeightTensor& a = planner.source_tensor(*operation.source, key);
    const WeightTensor& b = planner.source_tensor(*operation.source_b, key);
    planner.require_float_source(key, a, *operation.source);
    planner.require_float_source(key, b, *operation.source_b);
    WeightTensor target = planner.weights().at(key);
    if (packed) {
      target.shape = unpacked_shape(planner, std::string(stem));
    } else {
      planner.require_float(key, "interpolated");
    }
    planner.require_same_shape(key, target, key, a, *operation.source);
    planner.require_same_shape(key, target, key, b, *operation.source_b);
    std::shared_ptr<Edit> edit =
        interpolate_edit(a, b, operation.ratio, operation.method);
    if (packed) {
      plan_packed(planner, std::string(stem), edit);
    } else {
      planner.add(key, edit);
    }
  }
}

}  // namespace mlxcel
