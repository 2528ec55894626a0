#include "ops/cpu/kernels/matmul_kernels.h"

namespace mlxcel::cpu {

bool same_decode_format(const Matrix& a, const Matrix& b) {
  if (a.decode != b.decode || a.in != b.in) {
    return false;
  }
  return a.decode == Arithmetic::f32 || a.quant == b.quant;
}

bool same_prefill_format(const Matrix& a, const Matrix& b) {
  if (a.prefill != b.prefill || a.in != b.in) {
    return false;
  }
  bool floating = a.prefill == Arithmetic::f32 || a.prefill == Arithmetic::bf16;
  // 8-bit ones are packed in the order in which the codes come apart.
  bool bytes = a.prefill == Arithmetic::int8;
  return floating || (a.quant.group_size == b.quant.group_size &&
                      (!bytes || a.quant.bits == b.quant.bits));
}

const Kernels& kernels_for(Isa isa) {
#if defined(__x86_64__)
  switch (isa) {
    case Isa::avx2:
      return kAvx2Kernels;
    case Isa::avx512:
      return kAvx512Kernels;
    case Isa::avx512_bf16:
      return kAvx512Bf16Kernels;
    case Isa::portable:
      break;
  }
#endif
  return kPortableKernels;
}

}  // namespace mlxcel::cpu
