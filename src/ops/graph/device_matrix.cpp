#include "ops/graph/linear.h"

namespace mlxcel::graph {

namespace {

std::string mode_name(QuantMode mode) {
  switch (mode) {
    case QuantMode::mxfp4:
      return "mxfp4";
    case QuantMode::mxfp8:
      return "mxfp8";
    case QuantMode::nvfp4:
      return "nvfp4";
    case QuantMode::none:
    case QuantMode::affine:
      break;
  }
  return "affine";
}

// In the type of activations, so that no product converts it again.
SharedArray in_compute(const Context& context, SharedArray array) {
  if (array->dtype() == context.compute ||
      !mx::issubdtype(array->dtype(), mx::floating)) {
    return array;
  }
  mx::array converted = mx::astype(*array, context.compute);
  mx::eval(converted);
  return std::make_shared<const mx::array>(converted);
}

}  // namespace

DeviceMatrix::DeviceMatrix(
    Context& context, const std::vector<const MatrixWeight*>& parts)
    : quant(parts.front()->quant) {
  auto upload = [&](WeightTensor MatrixWeight::* member) {
    std::vector<const WeightTensor*> tensors;
    for (const MatrixWeight* part : parts) {
      tensors.push_back(&(part->*member));
    }
    return context.uploader.upload(tensors);
  };
  weight = upload(&MatrixWeight::weight);
  if (!quant.packed()) {
    // On CPU devices a plain matrix stays in its own type and is widened when
    // used, so that it does not take twice the memory.
    if (context.gpu) {
      weight = in_compute(context, weight);
    }
    return;
  }
  scales = in_compute(context, upload(&MatrixWeight::scales));
  if (quant.mode == QuantMode::affine) {
    biases = in_compute(context, upload(&MatrixWeight::biases));
  }
}

mx::array DeviceMatrix::multiply(
    const Context& context, const mx::array& x) const {
  if (cuda_takes(context, *this, x.shape(0))) {
    return cuda_product(*this, x, 1, nullptr, {});
  }
  if (context.cuda) {
    return mx::matmul(x, mx::transpose(unpacked(context)));
  }
  if (quant.packed()) {
    return mx::quantized_matmul(
        x,
        *weight,
        *scales,
        biases ? std::optional(*biases) : std::nullopt,
        true,
        quant.group_size,
        quant.bits,
        mode_name(quant.mode));
  }
  return mx::matmul(x, mx::transpose(context.to_compute(*weight)));
}

mx::array DeviceMatrix::multiply_each(
    const Context& context, const mx::array& x, int count) const {
  auto blocks = [&](const mx::array& array) {
    return mx::reshape(array, {count, array.shape(0) / count, array.shape(1)});
  };
  if (cuda_takes(context, *this, x.shape(1))) {
    return cuda_product(*this, x, count, nullptr, {});
  }
  if (context.cuda) {
    return mx::matmul(x, mx::swapaxes(blocks(unpacked(context)), 1, 2));
  }
  if (quant.packed()) {
    return mx::quantized_matmul(
        x,
        blocks(*weight),
        blocks(*scales),
        biases ? std::optional(blocks(*biases)) : std::nullopt,
        true,
        quant.group_size,
        quant.bits,
        mode_name(quant.mode));
  }
  return mx::matmul(x, mx::swapaxes(blocks(context.to_compute(*weight)), 1, 2));
}

mx::array DeviceMatrix::multiply_blocks(
    const Context& context,
    const mx::array& x,
    int count,
    const mx::array& ids,
    bool sorted) const {
  auto blocks = [&](const mx::array& array) {
    return mx::reshape(array, {count, array.shape(0) / count, array.shape(1)});
  };
  // Products of so many rows each read a block of their own; from twice as many
  // as there are blocks on, most blocks are read more than once.
  if (x.shape(0) < 2 * count && cuda_takes(context, *this, 1)) {
    return cuda_product(*this, x, count, &ids, {});
  }
  // Not expand_dims: MLX 0.32's products of sorted rows take the stride that it
  // gives the axis of one for the distance between rows.
  mx::array rows = mx::reshape(x, {x.shape(0), 1, x.shape(1)});
  mx::array y =
      quant.packed() && !context.cuda
          ? mx::gather_qmm(
                rows,
                blocks(*weight),
                blocks(*scales),
                biases ? std::optional(blocks(*biases)) : std::nullopt,
                std::nullopt,
                ids,
                true,
                quant.group_size,
                quant.bits,
                mode_name(quant.mode),
                std::nullopt,
                sorted)
          : mx::gather_mm(
                rows,
                mx::swapaxes(blocks(unpacked(context)), 1, 2),
                std::nullopt,
                ids,
                sorted);
  return mx::squeeze(y, 1);
}

mx::array DeviceMatrix::unpacked(const Context& context) const {
  if (!quant.packed()) {
    return context.to_compute(*weight);
  }
  return context.to_compute(mx::dequantize(
      *weight,
      *scales,
      biases ? std::optional(*biases) : std::nullopt,
      quant.group_size,
      quant.bits,
      mode_name(quant.mode),
      std::nullopt,
      context.compute));
}

mx::array DeviceMatrix::rows(
    const Context& context, const mx::array& ids) const {
  mx::array chosen = mx::take(*weight, ids, 0);
  if (!quant.packed()) {
    return context.to_compute(chosen);
  }
  return context.to_compute(mx::dequantize(
      chosen,
      mx::take(*scales, ids, 0),
      biases ? std::optional(mx::take(*biases, ids, 0)) : std::nullopt,
      quant.group_size,
      quant.bits,
      mode_name(quant.mode),
      std::nullopt,
      context.compute));
}

}  // namespace mlxcel::graph
