// replace: the source's tensor in the place of the base's, same shape and
// dtype. The three tensors of a packed one move together.
#include "core/error.h"
#include "surgery/planner.h"

#include <set>

namespace mlxcel {

namespace {

void plan_one(
    Planner& planner, const std::string& key, const std::string& source_key) {
  const Source& from = *planner.operation().source;
  const WeightTensor& target = planner.weights().at(key);
  const WeightTensor& source = planner.source_tensor(from, source_key);
  if (target.dtype != source.dtype) {
    planner.fail(
        cat("tensor ",
            key,
            " holds ",
            target.dtype,
            " and ",
            source_key,
            " in ",
            from.path,
            " holds ",
            source.dtype),
        "replace does not convert: save the source in the base's dtype");
  }
  planner.require_same_shape(key, target, source_key, source, from);
  planner.add(key, replace_edit(source));
}

}  // namespace

void plan_replace(Planner& planner) {
  const Operation& operation = planner.operation();
  for (const std::string& key : planner.matched()) {
    if (planner.edited_with_weight(key)) {
      continue;
    }
    std::string source_key =
        operation.source_key.empty()
            ? key
            : fill_stars(
                  operation.source_key, *operation.pattern.captures(key));
    plan_one(planner, key, source_key);
    auto [stem, suffix] = split_key(key);
    if (suffix != "weight" || !planner.packed(stem)) {
      continue;
    }
    // "x.weight" has its metadata beside it as "x.scales"; a source key of
    // another form is taken for the stem itself.
    std::string source_stem = source_key.ends_with(".weight")
                                  ? source_key.substr(0, source_key.size() - 7)
                                  : source_key;
    for (const char* part : {".scales", ".biases"}) {
      if (planner.has(stem, part)) {
        plan_one(planner, cat(stem, part), source_stem + part);
      }
    }
  }
}

}  // namespace mlxcel
