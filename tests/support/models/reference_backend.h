// A backend of plain loops in double precision: what the ops mean, without any
// kernel. It tells a wrong spec from a wrong kernel.
#pragma once

#include "ops/backend.h"

#include <memory>

namespace mlxcel::testing {

std::unique_ptr<Backend> make_reference_backend();

}  // namespace mlxcel::testing
