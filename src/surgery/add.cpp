// add: w + alpha * source, the source tensor found under the same key.
#include "surgery/planner.h"

namespace mlxcel {

void plan_add(Planner& planner) {
  const Operation& operation = planner.operation();
  for (const std::string& key : planner.matched()) {
    auto [stem, suffix] = split_key(key);
    bool packed = suffix == "weight" && planner.packed(stem);
    if (packed && !operation.requantize) {
      planner.require_float(key, "added to");
    }
    if (operation.requantize && planner.edited_with_weight(key)) {
      continue;
    }
    const Source& from = *operation.source;
    const WeightTensor& source = planner.source_tensor(from, key);
    planner.require_float_source(key, source, from);
    WeightTensor target = planner.weights().at(key);
    if (packed) {
      target.shape = unpacked_shape(planner, std::string(stem));
    } else {
      planner.require_float(key, "added to");
    }
    planner.require_same_shape(key, target, key, source, from);
    std::shared_ptr<Edit> edit = add_edit(source, float(operation.alpha));
    if (packed) {
      plan_packed(planner, std::string(stem), edit);
    } else {
      planner.add(key, edit);
    }
  }
}

}  // namespace mlxcel
