// The inner loops of the CPU products, one table an instruction set. A kernel
// computes a range of a matrix's output rows for many activation rows; the
// result of one activation row never depends on how many there are.
#pragma once

#include "core/cpu_features.h"
#include "ops/backend.h"
#include "ops/cpu/kernels/fetch_list.h"
#include "ops/weights.h"

#include <cstddef>
#include <cstdint>

namespace mlxcel::cpu {

// What a product multiplies. Weights are always read where they lie.
enum class Arithmetic : uint8_t {
  f32,    // f32 activations, weights converted to f32
  int16,  // 16-bit activations with a scale a group, exact sums of codes
  bf16,   // both sides rounded to bf16, f32 sums
  int8,   // 8-bit activations with scales, exact sums of a group's codes
};

// Where rows of a matrix lie: what a thread reads first of a product, fetched
// at the end of the one before.
struct FirstRows {
  const std::byte* weight = nullptr;
  const std::byte* scales = nullptr;
  const std::byte* biases = nullptr;
  size_t weight_stride = 0, scale_stride = 0;
};

// A matrix [out, in] at any alignment, as kernels see it.
struct Matrix {
  int64_t out = 0, in = 0;
  DType dtype = DType::f32;  // plain: of the weight; packed: of the scales
  Quant quant;
  const std::byte* weight = nullptr;
  const std::byte* scales = nullptr;
  const std::byte* biases = nullptr;
  size_t weight_stride = 0, scale_stride = 0;  // bytes from row to row
  Arithmetic decode = Arithmetic::f32;
  Arithmetic prefill = Arithmetic::f32;
  FetchList* fetch = nullptr;  // to work off while decoding, if any
  // What is read after the outputs of a decode, if not the next ones.
  const FirstRows* after = nullptr;

  size_t bytes_per_row() const {
    return weight_stride + (quant.packed() ? 2 * scale_stride : 0);
  }
};

struct Kernels {
  // The arithmetic for a format; `exact` asks for f32 products.
  Arithmetic (*decode_arithmetic)(const Matrix& matrix, bool exact);
  Arithmetic (*prefill_arithmetic)(const Matrix& matrix, bool exact, bool int8);

  // Decode: activation rows in a form made once for all matrices of the same
  // format: rows * decode_row_bytes, 64-byte aligned. decode_pack writes row
  // `row` of `rows`; different rows may be written by different threads.
  size_t (*decode_row_bytes)(const Matrix& matrix);
  void (*decode_pack)(
      const Matrix& matrix, const float* x, int row, int rows, std::byte* out);
  // y[r * ldy + o - begin] = row o of the matrix times activation row r.
  void (*decode)(
      const Matrix& matrix,
      int64_t begin,
      int64_t end,
      const std::byte* x,
      int rows,
      float* y,
      int64_t ldy);

  // Prefill: tiles of at most tile_rows activation rows. A panel is a block of
  // panel_rows output rows that is converted once for all tiles.
  int tile_rows;
  int panel_rows;
  size_t (*tile_bytes)(const Matrix& matrix, int rows);
  // x[i * ldx]: row i of the tile.
  void (*tile_pack)(
      const Matrix& matrix,
      const float* x,
      int64_t ldx,
      int rows,
      std::byte* out);
  // The input columns a panel covers; longer rows are summed panel by panel in
  // order, which changes no bit.
  int64_t (*panel_columns)(const Matrix& matrix);
  size_t (*panel_bytes)(const Matrix& matrix);
  // Converts columns [k0, k1) of rows [begin, end), at most panel_rows.
  void (*panel_pack)(
      const Matrix& matrix,
      int64_t begin,
      int64_t end,
      int64_t k0,
      int64_t k1,
      std::byte* out);
  // y[i * ldy + o] (+)= tile row i times panel row o; adds when k0 > 0.
  void (*panel_multiply)(
      const Matrix& matrix,
      const std::byte* panel,
      int panel_count,
      int64_t k0,
      int64_t k1,
      const std::byte* tile,
      int rows,
      float* y,
      int64_t ldy);

  // out[i] = activation(gate[i]) * up[i]; up may be null (no factor).
  void (*activate)(
      Activation activation,
      const float* gate,
      const float* up,
      float* out,
      int64_t count);

  // Rows of a low-rank term. dot: y[j] = sum_i m[j, i] x[i] of the rows [begin,
  // end) of a plain matrix [., in]; axpy: y[j] += factor * sum_i t[i] m[i, j]
  // over columns [begin, end) of m [count, .], `stride` bytes a row.
  void (*term_dot)(
      DType dtype,
      const std::byte* matrix,
      size_t stride,
      int64_t begin,
      int64_t end,
      const float* x,
      int64_t in,
      float* y);
  void (*term_axpy)(
      DType dtype,
      const std::byte* matrix,
      size_t stride,
      int64_t count,
      int64_t begin,
      int64_t end,
      const float* t,
      float factor,
      float* y);
  // One row of a matrix as f32, times `scale`.
  void (*read_row)(const Matrix& matrix, int64_t row, float scale, float* out);
};

inline FirstRows rows_from(const Matrix& m, int64_t row) {
  FirstRows rows;
  rows.weight = m.weight + size_t(row) * m.weight_stride;
  rows.weight_stride = m.weight_stride;
  if (m.quant.packed()) {
    rows.scales = m.scales + size_t(row) * m.scale_stride;
    rows.biases = m.biases + size_t(row) * m.scale_stride;
    rows.scale_stride = m.scale_stride;
  }
  return rows;
}

// Two matrices of the same input read the same packed activations.
bool same_decode_format(const Matrix& a, const Matrix& b);
bool same_prefill_format(const Matrix& a, const Matrix& b);

const Kernels& kernels_for(Isa isa);

// The tables; those of instruction sets that the compiler's target lacks are
// absent.
extern const Kernels kPortableKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
extern const Kernels kAvx512Bf16Kernels;
#endif

}  // namespace mlxcel::cpu
