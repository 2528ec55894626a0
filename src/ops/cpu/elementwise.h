// The ops that work row by row: norms and sums.
#pragma once

#include "ops/cpu/context.h"

namespace mlxcel::cpu {

Tensor norm(Context& context, const Tensor& x, const Norm& norm);
Tensor add(Context& context, const Tensor& x, const Tensor& y, float scale);

}  // namespace mlxcel::cpu
