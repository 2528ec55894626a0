#include "ops/cpu/kernels/recurrence_kernels.h"

#include <cmath>

namespace mlxcel::cpu {
namespace {

// clang-format off
#include "ops/cpu/kernels/simd_portable.h"
#include "ops/cpu/kernels/recurrence_simd.h"
// clang-format on

}  // namespace

const RecurrenceKernels kRecurrencePortable = {
#include "ops/cpu/kernels/recurrence_table.h"
};

}  // namespace mlxcel::cpu
