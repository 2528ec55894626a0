#if defined(__x86_64__)

#include "ops/cpu/kernels/recurrence_kernels.h"

#include <immintrin.h>

namespace mlxcel::cpu {
namespace {

#include "ops/cpu/kernels/simd_avx2.h"
// The templates, in order of use.
// clang-format off
#include "ops/cpu/kernels/math_simd.h"

inline F f_sqrt(F a) {
  return _mm256_sqrt_ps(a);
}

#include "ops/cpu/kernels/recurrence_simd.h"
// clang-format on

}  // namespace

const RecurrenceKernels kRecurrenceAvx2 = {
#include "ops/cpu/kernels/recurrence_table.h"
};

}  // namespace mlxcel::cpu

#endif
