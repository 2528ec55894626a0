// A half of a block that is one square matrix, as pruned models have in place
// of an attention or an MLP.
#pragma once

#include "models/spec.h"

#include <string>
#include <utility>

namespace mlxcel {

class LinearPart : public PartSpec {
 public:
  // `role` below the layer: "attention.linear".
  LinearPart(std::string role, bool biased)
      : role_(std::move(role)), biased_(biased) {}
  std::vector<RoleShape> roles(int64_t hidden_size) const override;
  int64_t columns() const override {
    return 0;
  }
  std::unique_ptr<Sublayer> build(
      const PartBuilder& builder,
      const BlockSpec& block,
      int layer) const override;

 private:
  std::string role_;
  bool biased_;
};

}  // namespace mlxcel
