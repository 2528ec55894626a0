#include "ops/cpu/kernels/vector_avx2.h"
// The templates need the vector type.
#include "ops/cpu/kernels/norm_simd.h"

namespace mlxcel::cpu {

const NormKernels kNormAvx2 = {sum, sum_of_squares, scale, add, xielu};

}  // namespace mlxcel::cpu
