#include "surgery/planner.h"

#include "core/error.h"

namespace mlxcel {

Planner::Planner(
    const Operation& operation,
    const SurgeryBase& base,
    const WeightMap& weights)
    : operation_(operation), base_(base), weights_(weights) {
  for (const auto& [key, tensor] : weights) {
    if (operation.pattern.matches(key)) {
      matched_.push_back(key);
    }
  }
  if (matched_.empty()) {
    fail(
        cat("pattern ", operation.pattern.text(), " matches no tensor"),
        did_you_mean(operation.pattern.text(), weights.keys()));
  }
}

void Planner::fail(const std::string& why, const std::string& fix) const {
  throw SurgeryError(
      cat("cannot apply op ",
          name_of(operation_.kind),
          " (",
          operation_.place,
          ")"),
      why,
      fix);
}

bool Planner::has(std::string_view stem, std::string_view suffix) const {
  return weights_.contains(cat(stem, suffix));
}

bool Planner::packed(std::string_view stem) const {
  const WeightTensor* weight = weights_.find(cat(stem, ".weight"));
  return weight != nullptr && !is_float(weight->dtype) && has(stem, ".scales");
}

bool Planner::edited_with_weight(std::string_view key) const {
  auto [stem, suffix] = split_key(key);
  return (suffix == "scales" || suffix == "biases") && packed(stem) &&
         operation_.pattern.matches(cat(stem, ".weight"));
}

void Planner::require_float(
    const std::string& key, std::string_view verb) const {
  const WeightTensor& tensor = weights_.at(key);
  if (is_float(tensor.dtype)) {
    return;
  }
  auto [stem, suffix] = split_key(key);
  if (suffix == "weight" && packed(stem)) {
    fail(
        cat("tensor ",
            key,
            " holds packed integers (",
            tensor.dtype,
            "), which cannot be ",
            verb),
        "name its float metadata (.scales, .biases), use a float checkpoint, "
        "or set requantize: true on an add or interpolate");
  }
  fail(
      cat("tensor ", key, " holds ", tensor.dtype, ", not floats"),
      "leave it out of the pattern");
}

void Planner::require_columns(const std::string& stem, int64_t in) const {
  const WeightTensor& weight = weights_.at(stem + ".weight");
  bool fits = weight.ndim() == 2;
  if (!packed(stem)) {
    fits = fits && weight.dim(1) == in;
  } else {
    const WeightTensor& scales = weights_.at(stem + ".scales");
    const WeightTensor* biases = weights_.find(stem + ".biases");
    fits = fits && scales.ndim() == 2 && scales.dim(0) == weight.dim(0) &&
           scales.dim(1) > 0 && in % scales.dim(1) == 0 &&
           weight.dim(1) * 32 % in == 0 &&
           (biases == nullptr || biases->shape == scales.shape);
  }
  if (!fits) {
    fail(
        cat("tensor ",
            stem,
            ".weight has shape ",
            to_string(weight.shape),
            ", which is no matrix of the ",
            in,
            " columns that config.json asks for"),
        "check that config.json and the weights belong together");
  }
}

const WeightTensor& Planner::source_tensor(
    const Source& source, const std::string& key) const {
  const WeightTensor* found = source.tensors.find(key);
  if (found == nullptr) {
    fail(
        cat("source ", source.path, " has no tensor ", key),
        did_you_mean(key, source.tensors.keys()));
  }
  return *found;
}

void Planner::require_same_shape(
    const std::string& key,
    const WeightTensor& target,
    const std::string& source_key,
    const WeightTensor& source,
    const Source& from) const {
  if (target.shape != source.shape) {
    fail(
        cat("tensor ",
            key,
            " has shape ",
            to_string(target.shape),
            " and ",
            source_key,
            " in ",
            from.path,
            " has ",
            to_string(source.shape)),
        "shapes must be equal; nothing is transposed or broadcast");
  }
}

void Planner::require_float_source(
    const std::string& source_key,
    const WeightTensor& tensor,
    const Source& from) const {
  if (!is_float(tensor.dtype)) {
    fail(
        cat("tensor ",
            source_key,
            " in ",
            from.path,
            " holds ",
            tensor.dtype,
            ", not floats"),
        "use a float source");
  }
}

PlannedOperation Planner::finish() && {
  PlannedOperation out;
  out.operation = &operation_;
  out.matched = std::move(matched_);
  out.edits = std::move(edits_);
  return out;
}

Shape unpacked_shape(const Planner& planner, const std::string& stem) {
  const WeightTensor& weight = planner.weights().at(stem + ".weight");
  std::vector<RolePart> parts = planner.base().names.parts_of(stem);
  if (parts.empty()) {
    planner.fail(
        cat("the input size of the packed tensor ",
            stem,
            ".weight is not known"),
        "use a float checkpoint");
  }
  return {weight.dim(0), planner.base().names.cols(parts.front().role)};
}

void plan_packed(
    Planner& planner, const std::string& stem, std::shared_ptr<Edit> change) {
  const WeightTensor& weight = planner.weights().at(stem + ".weight");
  if (!planner.has(stem, ".biases") || weight.dtype != DType::u32) {
    planner.fail(
        cat("tensor ",
            stem,
            ".weight is packed (",
            weight.dtype,
            ") without biases, and requantize knows affine tensors"),
        "use a float or affine checkpoint");
  }
  int64_t in = unpacked_shape(planner, stem)[1];
  planner.require_columns(stem, in);
  int bits = int(weight.dim(1) * 32 / in);
  if (bits < 2 || bits > 8 || bits == 7) {
    planner.fail(
        cat("tensor ", stem, ".weight has codes of ", bits, " bits"),
        "affine codes have 2, 3, 4, 5, 6 or 8");
  }
  planner.add(
      stem + ".weight",
      requantize_edit(stem, bits, change, TriplePart::weight));
  planner.add(
      stem + ".scales",
      requantize_edit(stem, bits, change, TriplePart::scales));
  planner.add(
      stem + ".biases",
      requantize_edit(stem, bits, change, TriplePart::biases));
}

}  // namespace mlxcel
