// Random weights of every format with their values, for tests of the CPU
// products against plain f64 loops.
#pragma once

#include "core/half.h"
#include "ops/cpu/matmul.h"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

namespace mlxcel::testing {

struct TestMatrix {
  MatrixWeight weight;
  std::vector<float> values;  // [out, in]
};

// Bytes at a chosen misalignment, as a mapped file may hold them.
inline WeightTensor tensor_at(
    DType dtype,
    Shape shape,
    const std::vector<std::byte>& bytes,
    int offset = 1) {
  auto owned =
      std::make_shared<std::vector<std::byte>>(bytes.size() + size_t(offset));
  std::memcpy(owned->data() + offset, bytes.data(), bytes.size());
  WeightTensor tensor;
  tensor.dtype = dtype;
  tensor.shape = std::move(shape);
  tensor.data = owned->data() + offset;
  tensor.bytes = bytes.size();
  tensor.owner = owned;
  return tensor;
}

// Rounds values to dtype; `values` receives what the tensor holds.
inline WeightTensor float_tensor(
    DType dtype, Shape shape, std::vector<float>* values, int offset = 1) {
  std::vector<std::byte> bytes(values->size() * size_of(dtype));
  for (size_t i = 0; i < values->size(); ++i) {
    float& value = (*values)[i];
    if (dtype == DType::f32) {
      std::memcpy(bytes.data() + 4 * i, &value, 4);
      continue;
    }
    uint16_t half =
        dtype == DType::f16 ? f32_to_f16(value) : f32_to_bf16(value);
    value = dtype == DType::f16 ? f16_to_f32(half) : bf16_to_f32(half);
    std::memcpy(bytes.data() + 2 * i, &half, 2);
  }
  return tensor_at(dtype, std::move(shape), bytes, offset);
}

inline std::vector<float> random_values(
    std::mt19937& random, int64_t count, float size = 1) {
  std::normal_distribution<float> normal(0, size);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    value = normal(random);
  }
  return values;
}

// dtype: of the weight, or of scales and biases when quantized.
inline TestMatrix random_matrix(
    std::mt19937& random,
    int64_t out,
    int64_t in,
    DType dtype,
    Quant quant,
    int offset = 1) {
  TestMatrix matrix;
  matrix.weight.name = "test";
  matrix.weight.out = out;
  matrix.weight.in = in;
  matrix.weight.quant = quant;
  if (!quant.packed()) {
    matrix.values = random_values(random, out * in);
    matrix.weight.weight =
        float_tensor(dtype, {out, in}, &matrix.values, offset);
    return matrix;
  }
  int64_t groups = in / quant.group_size;
  int levels = 1 << quant.bits;
  std::vector<float> scales(static_cast<size_t>(out * groups));
  std::vector<float> biases(scales.size());
  std::uniform_real_distribution<float> uniform(0.5f, 1.5f);
  for (size_t i = 0; i < scales.size(); ++i) {
    scales[i] = uniform(random) * 3 / float(levels);
    biases[i] = -scales[i] * float(levels) / 2 * uniform(random);
  }
  matrix.weight.scales = float_tensor(dtype, {out, groups}, &scales, offset);
  matrix.weight.biases = float_tensor(dtype, {out, groups}, &biases, offset);
  size_t row_bytes = size_t(in) * size_t(quant.bits) / 8;
  std::vector<std::byte> codes(size_t(out) * row_bytes);
  for (std::byte& byte : codes) {
    byte = std::byte(random());
  }
  matrix.weight.weight =
      tensor_at(DType::u32, {out, in * quant.bits / 32}, codes, offset);
  matrix.values.resize(size_t(out * in));
  for (int64_t o = 0; o < out; ++o) {
    for (int64_t k = 0; k < in; ++k) {
      uint32_t code = 0;
      for (int bit = 0; bit < quant.bits; ++bit) {
        size_t at = size_t(k * quant.bits + bit);
        uint32_t byte = uint32_t(codes[size_t(o) * row_bytes + at / 8]);
        code |= (byte >> (at % 8) & 1) << bit;
      }
      size_t group = size_t(o * groups + k / quant.group_size);
      matrix.values[size_t(o * in + k)] =
          scales[group] * float(code) + biases[group];
    }
  }
  return matrix;
}

inline Quant affine(int bits, int group_size) {
  return {QuantMode::affine, bits, group_size};
}

inline Tensor make_tensor(
    cpu::Context& context, int64_t rows, const std::vector<float>& values) {
  Tensor tensor = context.make(rows, int64_t(values.size()) / rows);
  std::memcpy(cpu::data(tensor), values.data(), values.size() * sizeof(float));
  return tensor;
}

inline std::vector<float> values_of(const Tensor& tensor) {
  const float* data = cpu::data(tensor);
  return {data, data + tensor.rows() * tensor.cols()};
}

// A step of one prompt segment and one generated row for each further row.
inline Step make_step(int prompt_rows, int rows) {
  Step step;
  step.tokens.resize(size_t(rows));
  step.num_prompt_rows = prompt_rows;
  if (prompt_rows > 0) {
    step.segments.push_back({.first_row = 0, .num_rows = prompt_rows});
  }
  for (int row = prompt_rows; row < rows; ++row) {
    step.segments.push_back({.first_row = row, .num_rows = 1, .prompt = false});
  }
  return step;
}

// The context of an instruction set, whatever MLXCEL_CPU_ISA says.
inline std::unique_ptr<cpu::Context> make_context(
    Isa isa, int threads, DType activation, bool int8 = false) {
  ::setenv("MLXCEL_CPU_ISA", std::string(name_of(isa)).c_str(), 1);
  auto context = std::make_unique<cpu::Context>(BackendOptions{
      .threads = threads,
      .prefill_int8 = int8,
      .activation_dtype = activation});
  ::unsetenv("MLXCEL_CPU_ISA");
  return context;
}

}  // namespace mlxcel::testing
