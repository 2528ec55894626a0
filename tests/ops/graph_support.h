// Random weights with their exact values, and plain f64 loops for what an op
// must answer.
#pragma once

#include "core/half.h"
#include "io/weight_map.h"
#include "ops/backend.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <vector>

namespace mlxcel::testing {

using Values = std::vector<double>;

inline std::mt19937& generator() {
  static std::mt19937 random(20240501);
  return random;
}

inline Values random_values(size_t count, double scale = 1) {
  std::normal_distribution<double> normal(0, scale);
  Values out(count);
  for (double& x : out) {
    x = float(normal(generator()));
  }
  return out;
}

// Bytes at an odd address, as in a checkpoint file.
inline WeightTensor make_tensor(
    DType dtype, Shape shape, const void* data, size_t bytes) {
  auto memory = std::make_shared<std::vector<std::byte>>(bytes + 1);
  std::memcpy(memory->data() + 1, data, bytes);
  WeightTensor tensor;
  tensor.dtype = dtype;
  tensor.shape = std::move(shape);
  tensor.data = memory->data() + 1;
  tensor.bytes = bytes;
  tensor.owner = memory;
  return tensor;
}

// Rounds `values` to the dtype in place and stores them.
inline WeightTensor make_float(DType dtype, Shape shape, Values& values) {
  std::vector<float> wide;
  std::vector<uint16_t> narrow;
  for (double& x : values) {
    if (dtype == DType::f32) {
      wide.push_back(float(x));
    } else {
      narrow.push_back(
          dtype == DType::f16 ? f32_to_f16(float(x)) : f32_to_bf16(float(x)));
      x = dtype == DType::f16 ? f16_to_f32(narrow.back())
                              : bf16_to_f32(narrow.back());
    }
  }
  return dtype == DType::f32
             ? make_tensor(
                   dtype, std::move(shape), wide.data(), wide.size() * 4)
             : make_tensor(
                   dtype, std::move(shape), narrow.data(), narrow.size() * 2);
}

struct Matrix {
  MatrixWeight weight;
  Values values;  // [out, in]
};

inline Matrix plain_matrix(int64_t out, int64_t in, DType dtype) {
  Matrix m;
  m.values = random_values(size_t(out * in), 1 / std::sqrt(double(in)));
  m.weight.name = "plain";
  m.weight.out = out;
  m.weight.in = in;
  m.weight.weight = make_float(dtype, {out, in}, m.values);
  return m;
}

inline Matrix affine_matrix(
    int64_t out, int64_t in, int bits, int group, DType dtype) {
  Matrix m;
  m.weight.name = "affine";
  m.weight.out = out;
  m.weight.in = in;
  m.weight.quant = {QuantMode::affine, bits, group};
  int64_t words = in * bits / 32, groups = in / group;
  std::vector<uint32_t> packed(size_t(out * words), 0);
  double spread = 2 / std::sqrt(double(in));
  Values scales = random_values(size_t(out * groups), spread / (1 << bits));
  Values biases = random_values(size_t(out * groups), spread / 2);
  m.weight.scales = make_float(dtype, {out, groups}, scales);
  m.weight.biases = make_float(dtype, {out, groups}, biases);
  m.values.resize(size_t(out * in));
  std::uniform_int_distribution<uint32_t> code(0, (1u << bits) - 1);
  for (int64_t i = 0; i < out; ++i) {
    for (int64_t j = 0; j < in; ++j) {
      uint64_t q = code(generator());
      int64_t bit = j * bits;
      uint32_t* word = &packed[size_t(i * words + bit / 32)];
      uint64_t shifted = q << (bit % 32);
      word[0] |= uint32_t(shifted);
      if (shifted >> 32) {
        word[1] |= uint32_t(shifted >> 32);
      }
      size_t at = size_t(i * groups + j / group);
      m.values[size_t(i * in + j)] = scales[at] * double(q) + biases[at];
    }
  }
  m.weight.weight =
      make_tensor(DType::u32, {out, words}, packed.data(), packed.size() * 4);
  return m;
}

// y[rows, out] = x[rows, in] W^T
inline Values product(const Values& x, const Values& w, size_t in) {
  size_t rows = x.size() / in, out = w.size() / in;
  Values y(rows * out, 0);
  for (size_t i = 0; i < rows; ++i) {
    for (size_t j = 0; j < out; ++j) {
      for (size_t k = 0; k < in; ++k) {
        y[i * out + j] += x[i * in + k] * w[j * in + k];
      }
    }
  }
  return y;
}

inline Values rms_norm(
    Values x, size_t size, const Values& weight, double eps) {
  for (size_t first = 0; first < x.size(); first += size) {
    double sum = 0;
    for (size_t i = 0; i < size; ++i) {
      sum += x[first + i] * x[first + i];
    }
    for (size_t i = 0; i < size; ++i) {
      x[first + i] *= weight[i] / std::sqrt(sum / double(size) + eps);
    }
  }
  return x;
}

inline Values layer_norm(
    Values x,
    size_t size,
    const Values& weight,
    const Values& bias,
    double eps) {
  for (size_t first = 0; first < x.size(); first += size) {
    double mean = 0, variance = 0;
    for (size_t i = 0; i < size; ++i) {
      mean += x[first + i] / double(size);
    }
    for (size_t i = 0; i < size; ++i) {
      variance += (x[first + i] - mean) * (x[first + i] - mean) / double(size);
    }
    for (size_t i = 0; i < size; ++i) {
      x[first + i] =
          (x[first + i] - mean) / std::sqrt(variance + eps) * weight[i] +
          bias[i];
    }
  }
  return x;
}

// A step of one prompt segment.
inline Step prompt_step(int rows) {
  Step step;
  step.tokens.assign(size_t(rows), 0);
  Segment segment;
  segment.num_rows = rows;
  step.segments = {segment};
  step.num_prompt_rows = rows;
  return step;
}

// Values enter a backend as rows of a plain f32 table.
inline Tensor tensor_of(Backend& backend, const Values& values, int64_t cols) {
  Values copy = values;
  int64_t rows = int64_t(values.size()) / cols;
  EmbeddingWeights weights;
  weights.table.name = "input";
  weights.table.out = rows;
  weights.table.in = cols;
  weights.table.weight = make_float(DType::f32, {rows, cols}, copy);
  std::unique_ptr<Embedding> table =
      backend.prepare_embedding(std::move(weights));
  Step step = prompt_step(int(rows));
  for (int i = 0; i < int(rows); ++i) {
    step.tokens[size_t(i)] = i;
  }
  return backend.embed(step, *table, 1);
}

inline std::vector<float> read_back(Backend& backend, const Tensor& tensor) {
  std::vector<float> out(size_t(tensor.rows() * tensor.cols()));
  backend.read(tensor, out.data());
  return out;
}

// `relative`: of an expected value, allowed beside the tolerance.
inline void expect_near(
    const std::vector<float>& seen,
    const Values& expected,
    double tolerance,
    const std::string& what = "",
    double relative = 0) {
  ASSERT_EQ(seen.size(), expected.size()) << what;
  double worst = 0;
  size_t at = 0;
  for (size_t i = 0; i < seen.size(); ++i) {
    double error =
        std::abs(seen[i] - expected[i]) - relative * std::abs(expected[i]);
    if (!(error <= worst)) {
      worst = error;
      at = i;
    }
  }
  EXPECT_LE(worst, tolerance) << what << " at " << at << ": " << seen[at]
                              << " instead of " << expected[at];
}

inline std::unique_ptr<Backend> graph_backend(DType dtype = DType::f32) {
  BackendOptions options;
  options.activation_dtype = dtype;
  return make_graph_backend(options);
}

}  // namespace mlxcel::testing
