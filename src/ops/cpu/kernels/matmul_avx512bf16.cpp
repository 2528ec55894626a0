// The kernels for AVX-512 with BF16 and VNNI.
#if defined(__x86_64__)

#include "ops/cpu/kernels/unpack.h"

#include <immintrin.h>

namespace mlxcel::cpu {
namespace {

constexpr int kMaxX = 6;         // activation rows of a decode block
constexpr int kTileRows = 12;    // activation rows of a tile
constexpr int kIntegerRows = 6;  // of a tile at once, integer products

#include "ops/cpu/kernels/simd_avx512.h"
// The templates, in order of use.
#include "ops/cpu/kernels/matmul_formats.h"
// clang-format off
#include "ops/cpu/kernels/decode_kernels.h"
#include "ops/cpu/kernels/coded_rows.h"
#include "ops/cpu/kernels/coded_lanes.h"
#include "ops/cpu/kernels/coded_strips.h"
#include "ops/cpu/kernels/coded_bytes.h"
#include "ops/cpu/kernels/row_scale.h"
#include "ops/cpu/kernels/coded_nibbles.h"
#include "ops/cpu/kernels/coded_dispatch.h"
#include "ops/cpu/kernels/decode_dispatch.h"
#include "ops/cpu/kernels/panel_pack.h"
#include "ops/cpu/kernels/panel_kernels.h"
#include "ops/cpu/kernels/byte_panels.h"
#include "ops/cpu/kernels/panel_dispatch.h"
#include "ops/cpu/kernels/element_kernels.h"
// clang-format on

}  // namespace

const Kernels kAvx512Bf16Kernels = {
#include "ops/cpu/kernels/kernel_table.h"
};

}  // namespace mlxcel::cpu

#endif
