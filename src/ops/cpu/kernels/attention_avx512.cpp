#include "ops/cpu/kernels/vector_avx512.h"
// The templates need the vector type.
#include "ops/cpu/kernels/attention_simd.h"

namespace mlxcel::cpu {

const AttentionKernels kAttentionAvx512 = {
    .product = product,
    .product_bf16 = nullptr,
    .widen = widen,
    .f16_to_bf16 = f16_to_bf16,
    .narrow = narrow,
    .turn_f32 = turn_f32,
    .turn_pairs = turn_pairs,
    .softmax = softmax,
    .scale = scale,
    .add_scaled = add_scaled,
    .multiply_sigmoid = multiply_sigmoid,
    .rotate = rotate,
};

}  // namespace mlxcel::cpu
