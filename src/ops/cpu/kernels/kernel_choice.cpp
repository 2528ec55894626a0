// Which kernels an instruction set uses.
#include "ops/cpu/kernels/attention_kernels.h"
#include "ops/cpu/kernels/norm_kernels.h"
#include "ops/cpu/kernels/recurrence_kernels.h"

namespace mlxcel::cpu {

const NormKernels& norm_kernels(Isa isa) {
#ifdef __x86_64__
  switch (isa) {
    case Isa::portable:
      return kNormPortable;
    case Isa::avx2:
      return kNormAvx2;
    case Isa::avx512:
    case Isa::avx512_bf16:
      return kNormAvx512;
  }
#endif
  (void)isa;
  return kNormPortable;
}

const RecurrenceKernels& recurrence_kernels(Isa isa) {
#ifdef __x86_64__
  switch (isa) {
    case Isa::portable:
      return kRecurrencePortable;
    case Isa::avx2:
      return kRecurrenceAvx2;
    case Isa::avx512:
    case Isa::avx512_bf16:
      return kRecurrenceAvx512;
  }
#endif
  (void)isa;
  return kRecurrencePortable;
}

const AttentionKernels& attention_kernels(Isa isa) {
#ifdef __x86_64__
  switch (isa) {
    case Isa::portable:
      return kAttentionPortable;
    case Isa::avx2:
      return kAttentionAvx2;
    case Isa::avx512:
      return kAttentionAvx512;
    case Isa::avx512_bf16:
      return kAttentionAvx512Bf16;
  }
#endif
  (void)isa;
  return kAttentionPortable;
}

}  // namespace mlxcel::cpu
