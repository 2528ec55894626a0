// The edits that operations are made of. Arithmetic runs in f32 and is rounded
// once to the tensor's dtype.
#pragma once

#include "surgery/surgery.h"

namespace mlxcel {

// w * factor
std::shared_ptr<Edit> scale_edit(float factor);

// w + alpha * source, the source rounded to w's dtype first. Same shape.
std::shared_ptr<Edit> add_edit(WeightTensor source, float alpha);

// Zeros. A span is [first, last) of rows or columns of a tensor seen as
// [rows, columns]; a 1-D tensor has one column.
struct Spans {
  std::vector<std::pair<int64_t, int64_t>> rows, columns;
};
std::shared_ptr<Edit> zero_edit(Spans spans);
std::shared_ptr<Edit> zero_all_edit();

// The source's bytes.
std::shared_ptr<Edit> replace_edit(WeightTensor source);

// (1 - ratio) * a + ratio * b, or along the arc between them: weights
// sin((1 - ratio) t) / sin t and sin(ratio t) / sin t for the angle t between
// the two flattened tensors; linear where |cos t| > 0.9995 or a norm is zero.
std::shared_ptr<Edit> interpolate_edit(
    WeightTensor a, WeightTensor b, double ratio, Interpolation method);

// `change` on the dequantized rows of an affine triple, which are then
// quantized again with the same bits and group. One edit a tensor of the
// triple; each works from the triple as the operations before have left it.
enum class TriplePart : uint8_t { weight, scales, biases };
std::shared_ptr<Edit> requantize_edit(
    std::string stem, int bits, std::shared_ptr<Edit> change, TriplePart part);

}  // namespace mlxcel
