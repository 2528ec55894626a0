#include "ops/weights.h"

#include "core/error.h"

#include <algorithm>
#include <cstring>

namespace mlxcel {

std::string to_string(const Quant& quant) {
  switch (quant.mode) {
    case QuantMode::none:
      return "not packed";
    case QuantMode::affine:
      return cat("affine, ", quant.bits, " bits, group ", quant.group_size);
    case QuantMode::mxfp4:
      return "mxfp4";
    case QuantMode::mxfp8:
      return "mxfp8";
    case QuantMode::nvfp4:
      return "nvfp4";
  }
  return {};
}

namespace {

WeightTensor slice_rows(
    const WeightTensor& tensor, int64_t first, int64_t count) {
  WeightTensor out = tensor;
  size_t row_bytes = tensor.bytes / size_t(tensor.shape[0]);
  out.shape[0] = count;
  out.data = tensor.data + size_t(first) * row_bytes;
  out.bytes = size_t(count) * row_bytes;
  return out;
}

}  // namespace

MatrixWeight slice_rows(
    const MatrixWeight& matrix, int64_t first, int64_t count) {
  if (first < 0 || count < 0 || first > matrix.out - count) {
    throw ShapeError(
        cat(matrix.name, ": no such rows"),
        cat("rows ", first, " to ", first + count, " of ", matrix.out));
  }
  if (first == 0 && count == matrix.out) {
    return matrix;
  }
  MatrixWeight out = matrix;
  out.out = count;
  out.weight = slice_rows(matrix.weight, first, count);
  if (matrix.quant.packed()) {
    out.scales = slice_rows(matrix.scales, first, count);
    if (!matrix.biases.shape.empty()) {
      out.biases = slice_rows(matrix.biases, first, count);
    }
  }
  return out;
}

namespace {

// Element i of a row's little-endian bit stream, bits [i * bits, (i + 1) *
// bits).
uint32_t read_code(
    const std::byte* row, size_t row_bytes, int64_t i, int bits) {
  int64_t bit = i * bits;
  auto byte = size_t(bit / 8);
  uint64_t window = 0;
  std::memcpy(&window, row + byte, std::min<size_t>(8, row_bytes - byte));
  return uint32_t(window >> (bit % 8)) & ((1u << bits) - 1);
}

}  // namespace

void read_rows(
    const MatrixWeight& matrix, int64_t first, int64_t count, float* out) {
  MatrixWeight rows = slice_rows(matrix, first, count);
  const Quant& quant = rows.quant;
  if (!quant.packed()) {
    read_as_f32(rows.weight, out);
    return;
  }
  if (quant.mode != QuantMode::affine) {
    throw CheckpointError(
        cat("the rows of ", matrix.name, " cannot be unpacked"),
        cat("they are packed as ", to_string(quant), "; affine ones can"),
        "use a checkpoint with this tensor unpacked");
  }
  int64_t groups = rows.in / quant.group_size;
  std::vector<float> scales(size_t(count * groups));
  std::vector<float> biases(scales.size());
  read_as_f32(rows.scales, scales.data());
  read_as_f32(rows.biases, biases.data());
  size_t row_bytes = size_t(rows.in) * size_t(quant.bits) / 8;
  for (int64_t r = 0; r < count; ++r) {
    const std::byte* codes = rows.weight.data + size_t(r) * row_bytes;
    for (int64_t i = 0; i < rows.in; ++i) {
      auto group = size_t(r * groups + i / quant.group_size);
      auto code = float(read_code(codes, row_bytes, i, quant.bits));
      *out++ = scales[group] * code + biases[group];
    }
  }
}

}  // namespace mlxcel
