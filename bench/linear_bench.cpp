// The CPU backend's linears by format, shape and number of rows:
//   build/release/bin/linear_bench --benchmark_filter=affine4_g64
// Counters: GB/s of weights read (what bounds decode), GFLOP/s (prefill).
#include "io/weight_map.h"
#include "ops/ops.h"

#include <benchmark/benchmark.h>

#include <cstring>
#include <random>
#include <string>

namespace mlxcel {
namespace {

struct Format {
  const char* name;
  Quant quant;
  DType dtype;  // of the weight, or of the scales and biases
};

constexpr Format kFormats[] = {
    {"f32", {}, DType::f32},
    {"f16", {}, DType::f16},
    {"bf16", {}, DType::bf16},
    {"affine4_g32", {QuantMode::affine, 4, 32}, DType::f16},
    {"affine4_g64", {QuantMode::affine, 4, 64}, DType::f16},
    {"affine8_g32", {QuantMode::affine, 8, 32}, DType::f16},
    {"affine8_g64", {QuantMode::affine, 8, 64}, DType::f16},
};

struct Dimensions {
  const char* name;
  int64_t out, in;
};

// Of the default model (576 wide) and of a 1B model (2048 wide).
constexpr Dimensions kShapes[] = {
    {"small_gate_up", 3072, 576},
    {"small_down", 576, 1536},
    {"1b_qkv", 3072, 2048},
    {"1b_gate_up", 16384, 2048},
    {"1b_down", 2048, 8192},
};

WeightTensor random_bytes(DType dtype, Shape shape, std::mt19937& random) {
  std::byte* data = nullptr;
  WeightTensor tensor = make_weight(dtype, std::move(shape), &data);
  for (size_t i = 0; i + 4 <= tensor.bytes; i += 4) {
    uint32_t bits = random();
    std::memcpy(data + i, &bits, 4);
  }
  return tensor;
}

// Values around 1/64, which no format rounds to zero or infinity.
WeightTensor random_floats(DType dtype, Shape shape, std::mt19937& random) {
  WeightTensor tensor = random_bytes(dtype, std::move(shape), random);
  auto* data = const_cast<std::byte*>(tensor.data);
  size_t size = size_of(dtype);
  unsigned char high = dtype == DType::f16 ? 0x24 : 0x3c;
  for (size_t i = size - 1; i < tensor.bytes; i += size) {
    auto sign = uint8_t(data[i]) & 0x80;
    data[i] = std::byte(uint8_t(sign | high));
  }
  return tensor;
}

MatrixWeight random_matrix(const Format& format, const Dimensions& shape) {
  std::mt19937 random(1);
  MatrixWeight matrix;
  matrix.name = "bench";
  matrix.out = shape.out;
  matrix.in = shape.in;
  matrix.quant = format.quant;
  if (!format.quant.packed()) {
    matrix.weight = random_floats(format.dtype, {shape.out, shape.in}, random);
    return matrix;
  }
  int64_t words = shape.in * format.quant.bits / 32;
  int64_t groups = shape.in / format.quant.group_size;
  matrix.weight = random_bytes(DType::u32, {shape.out, words}, random);
  matrix.scales = random_floats(format.dtype, {shape.out, groups}, random);
  matrix.biases = random_floats(format.dtype, {shape.out, groups}, random);
  return matrix;
}

// Rows of a table as activations: there is no other way to make a tensor.
Tensor random_rows(Backend& backend, const Step& step, int64_t width) {
  std::mt19937 random(2);
  EmbeddingWeights weights;
  weights.table.name = "rows";
  weights.table.out = step.num_rows();
  weights.table.in = width;
  weights.table.weight =
      random_floats(DType::f32, {step.num_rows(), width}, random);
  auto table = backend.prepare_embedding(std::move(weights));
  return ops::embed(backend, step, *table);
}

void run(
    benchmark::State& state,
    const Format& format,
    const Dimensions& shape,
    int rows) {
  auto backend = make_cpu_backend({});
  MatrixWeight matrix = random_matrix(format, shape);
  double bytes =
      double(matrix.weight.bytes + matrix.scales.bytes + matrix.biases.bytes);
  LinearWeights weights;
  weights.name = "bench";
  weights.parts.push_back(std::move(matrix));
  auto linear = backend->prepare_linear(std::move(weights));

  Step step;
  bool prompt = rows > 1;
  for (int row = 0; row < rows; ++row) {
    step.tokens.push_back(row);
  }
  Segment segment;
  segment.num_rows = rows;
  segment.prompt = prompt;
  step.segments.push_back(segment);
  step.num_prompt_rows = prompt ? rows : 0;

  Tensor x = random_rows(*backend, step, shape.in);
  for (auto _ : state) {
    Tensor y = ops::linear(*backend, step, x, *linear);
    benchmark::DoNotOptimize(y.storage());
  }
  using benchmark::Counter;
  double calls = double(state.iterations());
  state.counters["GB/s"] = Counter(bytes * calls / 1e9, Counter::kIsRate);
  state.counters["GFLOP/s"] = Counter(
      2.0 * rows * double(shape.out) * double(shape.in) * calls / 1e9,
      Counter::kIsRate);
}

void declare_all() {
  for (const Format& format : kFormats) {
    for (const Dimensions& shape : kShapes) {
      for (int rows : {1, 512}) {
        std::string name = std::string(format.name) + "/" + shape.name +
                           "/rows:" + std::to_string(rows);
        benchmark::RegisterBenchmark(
            name.c_str(),
            [&format, &shape, rows](benchmark::State& state) {
              run(state, format, shape, rows);
            })
            ->UseRealTime()
            ->Unit(benchmark::kMicrosecond);
      }
    }
  }
}

}  // namespace
}  // namespace mlxcel

int main(int argc, char** argv) {
  mlxcel::declare_all();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
