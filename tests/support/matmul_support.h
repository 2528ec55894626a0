// Random weights of every format with their values, for tests of the CPU
// products against plain f64 loops.
#pragma once

#include "ops/cpu/matmul.h"

#include <memory>
#include <random>
#include <vector>

namespace mlxcel::testing {

// Bytes at a chosen misalignment, as a mapped file may hold them.
WeightTensor tensor_at(
    DType dtype, Shape shape, const std::vector<std::byte>& bytes, int offset);

// Rounds values to dtype; `values` receives what the tensor holds.
WeightTensor float_tensor(
    DType dtype, Shape shape, std::vector<float>* values, int offset = 1);

std::vector<float> random_values(
    std::mt19937& random, int64_t count, float size = 1);

struct TestMatrix {
  MatrixWeight weight;
  std::vector<float> values;  // [out, in]
};

// dtype: of the weight, or of scales and biases when quantized.
TestMatrix random_matrix(
    std::mt19937& random,
    int64_t out,
    int64_t in,
    DType dtype,
    Quant quant,
    int offset = 1);

Quant affine(int bits, int group_size);

Tensor make_tensor(
    cpu::Context& context, int64_t rows, const std::vector<float>& values);
std::vector<float> values_of(const Tensor& tensor);

// A step of one prompt segment and one generated row for each further row.
Step make_step(int prompt_rows, int rows);

// The context of an instruction set, whatever MLXCEL_CPU_ISA says.
std::unique_ptr<cpu::Context> make_context(
    Isa isa, int threads, DType activation, bool int8 = false);

}  // namespace mlxcel::testing
