// Grouped-query attention whose query projection holds each head's queries and
// then its gate, whose sigmoid the head's result is multiplied by. Roles:
// attention.q.{h} and attention.gate.{h} for each head, and the usual ones.
#pragma once

#include "models/names.h"
#include "models/parts.h"

namespace mlxcel {

struct GatedAttentionSpec : PartSpec {
  AttentionSpec attention;

  std::vector<RoleShape> roles(int64_t hidden_size) const override;
  KvLayerSpec cache() const override;
  const AttentionSpec* grouped_attention() const override {
    return &attention;
  }
  int64_t columns() const override;
  std::unique_ptr<Sublayer> build(
      const PartBuilder& builder,
      const BlockSpec& block,
      int layer) const override;
};

// The rule of the stem with queries and gates by head, for any number of heads.
NameRule queries_and_gates(std::string stem);

}  // namespace mlxcel
