// The recurrent mixers as their formulas say, in double precision.
#pragma once

#include "support/models/reference_parts.h"

namespace mlxcel::testing::reference {

struct ReferenceConstants : Constants {
  explicit ReferenceConstants(const std::vector<float>& numbers)
      : Constants(int64_t(numbers.size())),
        values(numbers.begin(), numbers.end()) {}
  Row values;
};

// `states`: of the layer, by slot.
Tensor recurrence(const Step& step, const Recurrence& op, Rows& states);

}  // namespace mlxcel::testing::reference
