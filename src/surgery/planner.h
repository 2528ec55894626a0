// What the operations share when they are matched against a checkpoint.
#pragma once

#include "surgery/edits.h"
#include "surgery/surgery.h"

#include <string>
#include <string_view>
#include <vector>

namespace mlxcel {

class Planner {
 public:
  Planner(
      const Operation& operation,
      const SurgeryBase& base,
      const WeightMap& weights);

  const Operation& operation() const {
    return operation_;
  }
  const SurgeryBase& base() const {
    return base_;
  }
  const WeightMap& weights() const {
    return weights_;
  }
  const std::vector<std::string>& matched() const {
    return matched_;
  }

  // Throws SurgeryError that opens with the operation and its place.
  [[noreturn]] void fail(const std::string& why, const std::string& fix) const;

  // `<stem>.weight` holds codes: it is no float tensor and has `.scales`.
  bool packed(std::string_view stem) const;
  bool has(std::string_view stem, std::string_view suffix) const;
  // The pattern hits `.weight` of the packed stem that `key` belongs to, so
  // that the three tensors are edited as one.
  bool edited_with_weight(std::string_view key) const;
  // Refuses tensors that hold no floats; packed ones with advice.
  void require_float(const std::string& key, std::string_view verb) const;
  // Refuses a matrix whose shape is not what the config says: `in` columns, or
  // for a packed stem an affine layout of so many.
  void require_columns(const std::string& stem, int64_t in) const;
  // The tensor of a source; refuses when it is missing.
  const WeightTensor& source_tensor(
      const Source& source, const std::string& key) const;
  void require_same_shape(
      const std::string& key,
      const WeightTensor& target,
      const std::string& source_key,
      const WeightTensor& source,
      const Source& from) const;
  void require_float_source(
      const std::string& source_key,
      const WeightTensor& tensor,
      const Source& from) const;

  void add(std::string key, std::shared_ptr<Edit> edit) {
    edits_.push_back({std::move(key), std::move(edit)});
  }
  PlannedOperation finish() &&;

 private:
  const Operation& operation_;
  const SurgeryBase& base_;
  const WeightMap& weights_;
  std::vector<std::string> matched_;
  std::vector<TensorEdit> edits_;
};

void plan_scale(Planner& planner);
void plan_add(Planner& planner);
void plan_prune(Planner& planner);
void plan_replace(Planner& planner);
void plan_interpolate(Planner& planner);

// A change of the float values behind a packed affine stem: planned when the
// operation says requantize, refused otherwise.
void plan_packed(
    Planner& planner, const std::string& stem, std::shared_ptr<Edit> change);
// The shape of the float matrix behind a packed affine stem.
Shape unpacked_shape(const Planner& planner, const std::string& stem);

}  // namespace mlxcel
