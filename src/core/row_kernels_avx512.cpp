#include "core/row_kernels_impl.h"

namespace mlxcel {
extern const RowKernels kRowKernelsAvx512;
const RowKernels kRowKernelsAvx512 = kRowKernels;
}  // namespace mlxcel
