#include "core/row_kernels_impl.h"

namespace mlxcel {
extern const RowKernels kRowKernelsAvx2;
const RowKernels kRowKernelsAvx2 = kRowKernels;
}  // namespace mlxcel
