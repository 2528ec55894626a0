// A mixture of experts beside the MLPs of two layers: it reads what the first
// MLP reads, and its result is added after the second (Meituan LongCat 2025,
// "LongCat-Flash", section 2.1).
#pragma once

#include "models/spec.h"

#include <optional>

namespace mlxcel {

class ShortcutMlp : public PartSpec {
 public:
  // With experts: the first layer of a pair; without: the second.
  ShortcutMlp(MlpSpec mlp, std::optional<MoeSpec> experts)
      : mlp_(mlp), experts_(std::move(experts)) {}
  std::vector<RoleShape> roles(int64_t hidden_size) const override;
  int64_t columns() const override;
  std::unique_ptr<Sublayer> build(
      const PartBuilder& builder,
      const BlockSpec& block,
      int layer) const override;

 private:
  MlpSpec mlp_;
  std::optional<MoeSpec> experts_;
};

}  // namespace mlxcel
