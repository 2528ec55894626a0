#include "core/row_kernels.h"

#include "core/cpu_features.h"
#include "core/error.h"
#include "core/row_kernels_impl.h"

namespace mlxcel {

extern const RowKernels kRowKernelsAvx2;
extern const RowKernels kRowKernelsAvx512;

const RowKernels& row_kernels() {
  static const RowKernels& chosen = [](Isa isa) -> const RowKernels& {
    switch (isa) {
      case Isa::portable:
        return kRowKernels;
      case Isa::avx2:
        return kRowKernelsAvx2;
      case Isa::avx512:
      case Isa::avx512_bf16:
        return kRowKernelsAvx512;
    }
    return kRowKernels;
  }(choose_isa());
  return chosen;
}

void convert_to_f32(DType from, const void* source, int64_t n, float* out) {
  switch (from) {
    case DType::f32:
      std::memcpy(out, source, size_t(n) * 4);
      return;
    case DType::f16:
      row_kernels().f16_to_f32(source, n, out);
      return;
    case DType::bf16:
      row_kernels().bf16_to_f32(source, n, out);
      return;
    case DType::f64:
      for (int64_t i = 0; i < n; ++i) {
        out[i] = float(
            load_unaligned<double>(static_cast<const char*>(source) + 8 * i));
      }
      return;
    default:
      throw ShapeError(
          "cannot convert to f32",
          cat("the elements are ", from),
          "only F16, BF16, F32 and F64 hold real numbers here");
  }
}

void convert_from_f32(const float* source, int64_t n, DType to, void* out) {
  switch (to) {
    case DType::f32:
      std::memcpy(out, source, size_t(n) * 4);
      return;
    case DType::f16:
      row_kernels().f32_to_f16(source, n, out);
      return;
    case DType::bf16:
      row_kernels().f32_to_bf16(source, n, out);
      return;
    case DType::f64:
      for (int64_t i = 0; i < n; ++i) {
        double value = source[i];
        std::memcpy(static_cast<char*>(out) + 8 * i, &value, 8);
      }
      return;
    default:
      throw ShapeError(
          "cannot convert from f32",
          cat("the elements are ", to),
          "only F16, BF16, F32 and F64 hold real numbers here");
  }
}

}  // namespace mlxcel
