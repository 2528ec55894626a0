// What the ops check of their arguments, once for both backends. `op` is the
// op's name for messages; all throw ShapeError.
#pragma once

#include "core/error.h"
#include "ops/backend.h"

#include <string>

namespace mlxcel::ops {

constexpr const char* kCheckConfig =
    "check the sizes in config.json against the weights";

[[noreturn]] void mismatch(
    const char* op, const char* what, std::string why, const char* fix);

std::string shape_of(const Tensor& tensor);

// The rows of the step's segments are its rows, prompt rows first, and every
// sequence has the blocks that its positions need (no cache: none).
void check_step(const char* op, const Step& step, const KvCache* cache);
void check_rows(const char* op, const Step& step, const Tensor& x);
// A norm that is not null is of this size.
void check_norm(
    const char* op, const char* role, const Norm* norm, int64_t size);

}  // namespace mlxcel::ops
