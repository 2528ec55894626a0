// The kernels for AVX2, FMA and F16C.
#if defined(__x86_64__)

#include "ops/cpu/kernels/unpack.h"

#include <immintrin.h>

namespace mlxcel::cpu {
namespace {

constexpr int kMaxX = 4;         // activation rows of a decode block
constexpr int kTileRows = 6;     // activation rows of a tile
constexpr int kIntegerRows = 6;  // of a tile at once, integer products
constexpr int kByteRows = 6;     // the same, products of bytes

#include "ops/cpu/kernels/simd_avx2.h"
#include "ops/cpu/kernels/six_rows_avx2.h"
// The templates, in order of use.
#include "ops/cpu/kernels/matmul_formats.h"
// clang-format off
#include "ops/cpu/kernels/decode_kernels.h"
#include "ops/cpu/kernels/decode_dispatch.h"
#include "ops/cpu/kernels/panel_pack.h"
#include "ops/cpu/kernels/panel_kernels.h"
#include "ops/cpu/kernels/byte_sums.h"
#include "ops/cpu/kernels/panel_dispatch.h"
#include "ops/cpu/kernels/element_kernels.h"
// clang-format on

}  // namespace

const Kernels kAvx2Kernels = {
#include "ops/cpu/kernels/kernel_table.h"
};

}  // namespace mlxcel::cpu

#endif
