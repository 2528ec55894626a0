#include "core/error.h"
#include "ops/cpu/cpu_linear.h"
#include "ops/cpu/matmul.h"

#include <algorithm>

namespace mlxcel::cpu {

namespace {

[[noreturn]] void bad_tensor(
    const MatrixWeight& weight,
    std::string_view which,
    const WeightTensor& tensor,
    const std::string& expected) {
  throw CheckpointError(
      cat("tensor ", weight.name, ".", which, " does not fit its linear"),
      cat("found ",
          name_of(tensor.dtype),
          " ",
          to_string(tensor.shape),
          " of ",
          tensor.bytes,
          " bytes, expected ",
          expected,
          tensor.file.empty() ? "" : cat(" in ", tensor.file)),
      "check the sizes and the quantization in config.json");
}

bool has_form(const WeightTensor& tensor, const Shape& shape) {
  return tensor.shape == shape && tensor.data != nullptr &&
         tensor.bytes == size_t(element_count(shape)) * size_of(tensor.dtype);
}

bool weight_float(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

void check_affine(const MatrixWeight& weight) {
  const Quant& quant = weight.quant;
  bool bits = quant.bits >= 1 && quant.bits <= 8 && quant.bits != 7;
  bool group = quant.group_size == 32 || quant.group_size == 64 ||
               quant.group_size == 128;
  if (quant.mode != QuantMode::affine || !bits || !group) {
    throw CheckpointError(
        cat("the quantization of ",
            weight.name,
            " is not supported on the CPU"),
        cat(to_string(quant),
            "; supported: affine with 1, 2, 3, 4, 5, 6 or 8 bits and groups of "
            "32, 64 or 128"),
        "use --backend graph, or quantize the checkpoint to a supported form");
  }
  if (weight.in % quant.group_size != 0) {
    throw CheckpointError(
        cat("the groups of ", weight.name, " do not divide its input"),
        cat("input ", weight.in, ", group size ", quant.group_size),
        "check group_size in config.json");
  }
  Shape codes = {weight.out, weight.in * quant.bits / 32};
  Shape groups = {weight.out, weight.in / quant.group_size};
  if (weight.weight.dtype != DType::u32 || !has_form(weight.weight, codes)) {
    bad_tensor(weight, "weight", weight.weight, cat("U32 ", to_string(codes)));
  }
  for (auto [name, tensor] :
       {std::pair("scales", &weight.scales),
        std::pair("biases", &weight.biases)}) {
    if (!weight_float(tensor->dtype) || !has_form(*tensor, groups)) {
      bad_tensor(
          weight, name, *tensor, cat("F32, F16 or BF16 ", to_string(groups)));
    }
  }
  if (weight.scales.dtype != weight.biases.dtype) {
    bad_tensor(
        weight,
        "biases",
        weight.biases,
        cat(name_of(weight.scales.dtype), " as the scales are"));
  }
}

}  // namespace

Matrix make_matrix(
    const Kernels& kernels,
    const MatrixWeight& weight,
    const BackendOptions& options) {
  Matrix matrix;
  matrix.out = weight.out;
  matrix.in = weight.in;
  matrix.quant = weight.quant;
  matrix.weight = weight.weight.data;
  if (weight.quant.packed()) {
    check_affine(weight);
    matrix.dtype = weight.scales.dtype;
    matrix.scales = weight.scales.data;
    matrix.biases = weight.biases.data;
    matrix.weight_stride = size_t(weight.in) * size_t(weight.quant.bits) / 8;
    matrix.scale_stride =
        size_t(weight.in / weight.quant.group_size) * size_of(matrix.dtype);
  } else {
    Shape shape = {weight.out, weight.in};
    if (!weight_float(weight.weight.dtype) || !has_form(weight.weight, shape)) {
      bad_tensor(
          weight,
          "weight",
          weight.weight,
          cat("F32, F16 or BF16 ", to_string(shape)));
    }
    matrix.dtype = weight.weight.dtype;
    matrix.weight_stride = size_t(weight.in) * size_of(matrix.dtype);
  }
  bool exact =
      options.activation_dtype == DType::f32 || matrix.dtype == DType::f32;
  matrix.decode = kernels.decode_arithmetic(matrix, exact);
  matrix.prefill =
      kernels.prefill_arithmetic(matrix, exact, options.prefill_int8);
  return matrix;
}

void check_term(
    const LowRankTerm& term, const std::string& name, int64_t in, int64_t out) {
  Shape a = term.rank_first ? Shape{term.rank, in} : Shape{in, term.rank};
  Shape b = term.rank_first ? Shape{term.rows, term.rank}
                            : Shape{term.rank, term.rows};
  bool fits = term.rank > 0 && term.adapter >= 0 && term.row_begin >= 0 &&
              term.rows > 0 && term.row_begin + term.rows <= out &&
              weight_float(term.a.dtype) && weight_float(term.b.dtype) &&
              has_form(term.a, a) && has_form(term.b, b);
  if (!fits) {
    throw AdapterError(
        cat("an adapter term does not fit ", name),
        cat("A ",
            name_of(term.a.dtype),
            " ",
            to_string(term.a.shape),
            " and B ",
            name_of(term.b.dtype),
            " ",
            to_string(term.b.shape),
            ", expected ",
            to_string(a),
            " and ",
            to_string(b),
            " in F32, F16 or BF16, for outputs [",
            term.row_begin,
            ", ",
            term.row_begin + term.rows,
            ") of ",
            out),
        "check that the adapter was made for this model");
  }
}

CpuLinear::CpuLinear(Context& context, LinearWeights weights)
    : Linear(
          weights.parts.empty() ? 0 : weights.parts.front().in,
          [&] {
            int64_t out = 0;
            for (const MatrixWeight& part : weights.parts) {
              out += part.out;
            }
            return out;
          }()),
      weights_(std::move(weights)),
      kernels_(kernels_for(context.isa)) {
  if (weights_.parts.empty() || in() <= 0 || out() <= 0) {
    throw CheckpointError(
        cat("linear ", weights_.name, " has no weights"),
        cat(weights_.parts.size(), " parts, input ", in(), ", output ", out()),
        "check the sizes in config.json");
  }
  if (!weights_.biases.empty() &&
      weights_.biases.size() != weights_.parts.size()) {
    throw CheckpointError(
        cat("linear ", weights_.name, " has the wrong number of biases"),
        cat(weights_.biases.size(), " for ", weights_.parts.size(), " parts"));
  }
  auto format_of = [](std::vector<Matrix>& formats,
                      const Matrix& matrix,
                      bool (*same)(const Matrix&, const Matrix&)) {
    for (size_t i = 0; i < formats.size(); ++i) {
      if (same(formats[i], matrix)) {
        return int(i);
      }
    }
    formats.push_back(matrix);
    return int(formats.size()) - 1;
  };
  int64_t first = 0;
  for (size_t i = 0; i < weights_.parts.size(); ++i) {
    const MatrixWeight& weight = weights_.parts[i];
    if (weight.in != in()) {
      throw CheckpointError(
          cat("the parts of ", weights_.name, " have different inputs"),
          cat(weight.name, " reads ", weight.in, ", the first part ", in()),
          "check the sizes in config.json");
    }
    Part part;
    part.matrix = make_matrix(kernels_, weight, context.options);
    part.first = first;
    part.decode_format =
        format_of(decode_formats_, part.matrix, same_decode_format);
    part.prefill_format =
        format_of(prefill_formats_, part.matrix, same_prefill_format);
    if (!weights_.biases.empty() && weights_.biases[i]) {
      const WeightTensor& bias = *weights_.biases[i];
      if (!weight_float(bias.dtype) || !has_form(bias, {weight.out})) {
        bad_tensor(
            weight,
            "bias",
            bias,
            cat("F32, F16 or BF16 ", to_string({weight.out})));
      }
      part.bias.resize(size_t(weight.out));
      read_as_f32(bias, part.bias.data());
    }
    parts_.push_back(std::move(part));
    first += weight.out;
  }
  for (const LowRankTerm& term : weights_.terms) {
    check_term(term, weights_.name, in(), out());
  }
}

int64_t CpuLinear::split_by_bytes(int part, int parts) const {
  if (part <= 0) {
    return 0;
  }
  if (part >= parts) {
    return out();
  }
  double total = 0;
  for (const Part& p : parts_) {
    total += double(p.matrix.bytes_per_row()) * double(p.matrix.out);
  }
  double wanted = total * part / parts;
  for (const Part& p : parts_) {
    double bytes = double(p.matrix.bytes_per_row());
    if (wanted < bytes * double(p.matrix.out)) {
      // Whole blocks of rows, as the kernels work on several at once.
      int64_t rows = int64_t(wanted / bytes) / 16 * 16;
      return p.first + rows;
    }
    wanted -= bytes * double(p.matrix.out);
  }
  return out();
}

CpuEmbedding::CpuEmbedding(Context& context, EmbeddingWeights weights)
    : Embedding(weights.table.out, weights.table.in),
      weights_(std::move(weights)),
      kernels_(kernels_for(context.isa)),
      matrix_(make_matrix(kernels_, weights_.table, context.options)) {
  for (const LowRankTerm& term : weights_.terms) {
    check_term(term, weights_.table.name, vocab(), hidden());
  }
}

std::unique_ptr<Linear> prepare_linear(
    Context& context, LinearWeights weights) {
  return std::make_unique<CpuLinear>(context, std::move(weights));
}

std::unique_ptr<Embedding> prepare_embedding(
    Context& context, EmbeddingWeights weights) {
  return std::make_unique<CpuEmbedding>(context, std::move(weights));
}

}  // namespace mlxcel::cpu
