// scale: w * factor. A packed affine tensor is scaled through its .scales and
// .biases, once however many of its three keys the pattern hits.
#include "core/error.h"
#include "surgery/planner.h"

namespace mlxcel {

void plan_scale(Planner& planner) {
  std::shared_ptr<Edit> edit = scale_edit(float(planner.operation().factor));
  for (const std::string& key : planner.matched()) {
    if (planner.edited_with_weight(key)) {
      continue;
    }
    auto [stem, suffix] = split_key(key);
    if (suffix == "weight" && planner.packed(stem)) {
      if (!planner.has(stem, ".biases")) {
        planner.fail(
            cat("tensor ",
                key,
                " is packed without biases, and its ",
                planner.weights().at(cat(stem, ".scales")).dtype,
                " scales cannot hold every factor"),
            "use a float or affine checkpoint");
      }
      planner.add(cat(stem, ".scales"), edit);
      planner.add(cat(stem, ".biases"), edit);
      continue;
    }
    planner.require_float(key, "scaled");
    planner.add(key, edit);
  }
}

}  // namespace mlxcel
