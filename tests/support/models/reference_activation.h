// What the reference backend's MLPs do between their products.
#pragma once

#include "support/models/reference_parts.h"

namespace mlxcel::testing::reference {

double activate(Activation activation, double x);

// limit * tanh(x / limit); 0: x
double cap(double x, double limit);

// The result of the MLP's first product, [gate, up] or up alone, becomes the
// input of its second.
void apply_activation(Row& row, const MlpWeights& weights);

}  // namespace mlxcel::testing::reference
