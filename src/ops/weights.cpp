#include "ops/weights.h"

#include "core/error.h"

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

}  // namespace mlxcel
