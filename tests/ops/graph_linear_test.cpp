// Products, norms, embeddings, gated MLPs and heads of the graph backend
// against f64 loops.
#include "core/error.h"
#include "graph_support.h"

#include <numbers>
#include <thread>

namespace mlxcel::testing {
namespace {

std::unique_ptr<Linear> linear_of(
    Backend& backend,
    std::vector<Matrix> parts,
    std::vector<LowRankTerm> terms = {}) {
  LinearWeights weights;
  weights.name = "linear";
  for (Matrix& part : parts) {
    weights.parts.push_back(part.weight);
  }
  weights.terms = std::move(terms);
  return backend.prepare_linear(std::move(weights));
}

TEST(GraphLinear, AnswersEveryFormat) {
  auto backend = graph_backend();
  constexpr int64_t kIn = 128;
  Values x = random_values(3 * kIn);
  Tensor input = tensor_of(*backend, x, kIn);
  std::vector<Matrix> matrices;
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    matrices.push_back(plain_matrix(24, kIn, dtype));
  }
  for (int bits : {2, 3, 4, 5, 6, 8}) {
    for (int group : {32, 64, 128}) {
      matrices.push_back(affine_matrix(
          24, kIn, bits, group, bits == 4 ? DType::bf16 : DType::f32));
    }
  }
  for (const Matrix& matrix : matrices) {
    auto linear = linear_of(*backend, {matrix});
    Tensor y = backend->linear(prompt_step(3), input, *linear, {});
    EXPECT_EQ(y.rows(), 3);
    EXPECT_EQ(y.cols(), 24);
    expect_near(
        read_back(*backend, y),
        product(x, matrix.values, kIn),
        1e-4,
        to_string(matrix.weight.quant));
  }
}

TEST(GraphLinear, StacksPartsOfDifferentFormats) {
  auto backend = graph_backend();
  std::vector<Matrix> parts = {
      affine_matrix(16, 64, 4, 32, DType::f16),
      affine_matrix(8, 64, 4, 32, DType::f16),
      affine_matrix(8, 64, 8, 32, DType::f16),
      plain_matrix(10, 64, DType::bf16)};
  LinearWeights weights;
  weights.name = "qkv";
  Values all, bias(16, 0);
  for (const Matrix& part : parts) {
    weights.parts.push_back(part.weight);
    all.insert(all.end(), part.values.begin(), part.values.end());
  }
  Values second = random_values(8), last = random_values(10);
  weights.biases = {
      std::nullopt,
      make_float(DType::bf16, {8}, second),
      std::nullopt,
      make_float(DType::f32, {10}, last)};
  bias.insert(bias.end(), second.begin(), second.end());
  bias.insert(bias.end(), 8, 0);
  bias.insert(bias.end(), last.begin(), last.end());
  auto linear = backend->prepare_linear(weights);
  ASSERT_EQ(linear->out(), 42);

  Values x = random_values(2 * 64);
  Tensor y =
      backend->linear(prompt_step(2), tensor_of(*backend, x, 64), *linear, {});
  Values expected = product(x, all, 64);
  for (size_t i = 0; i < expected.size(); ++i) {
    expected[i] += bias[i % 42];
  }
  expect_near(read_back(*backend, y), expected, 1e-4);
}

TEST(GraphLinear, NormsScalesAndAddsTheResidual) {
  auto backend = graph_backend();
  Matrix matrix = plain_matrix(32, 48, DType::f32);
  auto linear = linear_of(*backend, {matrix});
  Values x = random_values(4 * 48), residual = random_values(4 * 32);
  Values in_weight = random_values(48), out_weight = random_values(32);
  NormWeights in, out;
  in.size = 48;
  in.eps = 1e-5f;
  in.weight = make_float(DType::bf16, {48}, in_weight);
  in.weight_offset = 1;
  out.size = 32;
  out.eps = 1e-6f;
  out.weight = make_float(DType::f32, {32}, out_weight);
  auto in_norm = backend->prepare_norm(in);
  auto out_norm = backend->prepare_norm(out);
  for (double& w : in_weight) {
    w += 1;
  }
  Tensor residual_tensor = tensor_of(*backend, residual, 32);
  LinearOptions options;
  options.norm = in_norm.get();
  options.output_norm = out_norm.get();
  options.residual = &residual_tensor;
  options.output_scale = 0.25f;
  Tensor y = backend->linear(
      prompt_step(4), tensor_of(*backend, x, 48), *linear, options);
  Values expected = rms_norm(
      product(rms_norm(x, 48, in_weight, 1e-5), matrix.values, 48),
      32,
      out_weight,
      1e-6);
  for (size_t i = 0; i < expected.size(); ++i) {
    expected[i] = residual[i] + 0.25 * expected[i];
  }
  expect_near(read_back(*backend, y), expected, 1e-4);
}

TEST(GraphNorm, LayerNormWithBias) {
  auto backend = graph_backend();
  Values x = random_values(5 * 40), weight = random_values(40),
         bias = random_values(40);
  NormWeights weights;
  weights.kind = NormKind::layer;
  weights.size = 40;
  weights.eps = 1e-5f;
  weights.weight = make_float(DType::f16, {40}, weight);
  weights.bias = make_float(DType::f16, {40}, bias);
  auto norm = backend->prepare_norm(weights);
  Tensor y = backend->norm(prompt_step(5), tensor_of(*backend, x, 40), *norm);
  expect_near(
      read_back(*backend, y), layer_norm(x, 40, weight, bias, 1e-5), 1e-5);

  weights.weight.reset();
  weights.bias.reset();
  weights.kind = NormKind::rms;
  auto bare = backend->prepare_norm(weights);
  y = backend->norm(prompt_step(5), tensor_of(*backend, x, 40), *bare);
  expect_near(
      read_back(*backend, y), rms_norm(x, 40, Values(40, 1), 1e-5), 1e-5);
}

LowRankTerm term_of(
    int adapter,
    int64_t in,
    int64_t row_begin,
    int64_t rows,
    int64_t rank,
    bool rank_first,
    Values& a,
    Values& b) {
  LowRankTerm term;
  term.adapter = adapter;
  term.row_begin = row_begin;
  term.rows = rows;
  term.rank = rank;
  term.scale = 0.5f;
  term.rank_first = rank_first;
  a = random_values(size_t(in * rank), 0.1);
  b = random_values(size_t(rank * rows), 0.3);
  term.a =
      make_float(DType::f32, rank_first ? Shape{rank, in} : Shape{in, rank}, a);
  term.b = make_float(
      DType::f32, rank_first ? Shape{rows, rank} : Shape{rank, rows}, b);
  return term;
}

TEST(GraphLinear, AddsAdapterTermsByRowAndKeepsOtherRowsBits) {
  auto backend = graph_backend();
  constexpr int64_t kIn = 64, kOut = 40;
  Matrix matrix = affine_matrix(kOut, kIn, 4, 32, DType::f32);
  Values a0, b0, a1, b1;
  std::vector<LowRankTerm> terms = {
      term_of(0, kIn, 8, 16, 4, false, a0, b0),
      term_of(2, kIn, 0, kOut, 3, true, a1, b1)};
  auto base = linear_of(*backend, {matrix});
  auto linear = linear_of(*backend, {matrix}, terms);
  Values x = random_values(6 * kIn);
  Tensor input = tensor_of(*backend, x, kIn);

  Step step = prompt_step(6);
  std::vector<float> none = {0, 1, 0}, first = {2}, both = {-1, 0, 0.5f};
  step.segments.clear();
  int row = 0;
  for (std::span<const float> scales :
       {std::span<const float>(none),
        std::span<const float>(first),
        std::span<const float>(both),
        std::span<const float>()}) {
    Segment segment;
    segment.first_row = row;
    segment.num_rows = row == 0 ? 3 : 1;
    segment.adapter_scales = scales;
    row += segment.num_rows;
    step.segments.push_back(segment);
  }
  std::vector<float> plain =
      read_back(*backend, backend->linear(step, input, *base, {}));
  std::vector<float> seen =
      read_back(*backend, backend->linear(step, input, *linear, {}));
  Values expected(plain.begin(), plain.end());
  auto add = [&](size_t at, double s0, double s1) {
    for (size_t j = 0; j < size_t(kOut); ++j) {
      for (size_t k = 0; k < size_t(kIn); ++k) {
        double xk = x[at * kIn + k];
        for (size_t r = 0; r < 4 && j >= 8 && j < 24; ++r) {
          expected[at * kOut + j] +=
              s0 * 0.5 * xk * a0[k * 4 + r] * b0[r * 16 + j - 8];
        }
        for (size_t r = 0; r < 3; ++r) {
          expected[at * kOut + j] +=
              s1 * 0.5 * xk * a1[r * kIn + k] * b1[j * 3 + r];
        }
      }
    }
  };
  add(3, 2, 0);
  add(4, -1, 0.5);
  expect_near(seen, expected, 1e-4);
  for (size_t i : {0u, 1u, 2u, 5u}) {
    EXPECT_EQ(
        std::memcmp(&seen[i * kOut], &plain[i * kOut], kOut * sizeof(float)), 0)
        << "row " << i;
  }
}

TEST(GraphLinear, RefusesTermsThatDoNotFit) {
  auto backend = graph_backend();
  Matrix matrix = plain_matrix(16, 32, DType::f32);
  Values a, b;
  LowRankTerm term = term_of(0, 32, 0, 16, 2, true, a, b);
  term.rows = 20;
  EXPECT_THROW(linear_of(*backend, {matrix}, {term}), AdapterError);
  term.rows = 12;
  try {
    linear_of(*backend, {matrix}, {term});
    FAIL();
  } catch (const AdapterError& error) {
    EXPECT_STREQ(
        error.what(),
        "factor B of an adapter term has the wrong size: shape [16, 2]; the "
        "layer needs 24 values\n  check that the adapter belongs to this "
        "model");
  }
}

TEST(GraphEmbedding, LooksUpPlainAndPackedRows) {
  auto backend = graph_backend();
  Step step = prompt_step(4);
  step.tokens = {5, 0, 31, 5};
  for (const Matrix& table :
       {plain_matrix(32, 64, DType::bf16),
        affine_matrix(32, 64, 4, 32, DType::f16),
        affine_matrix(32, 64, 8, 64, DType::f32)}) {
    EmbeddingWeights weights;
    weights.table = table.weight;
    Values a, b;
    weights.terms = {term_of(0, 32, 0, 64, 2, true, a, b)};
    weights.terms[0].rows = 32;  // a lookup's term has no row range
    auto embedding = backend->prepare_embedding(weights);
    std::vector<float> scales = {3};
    step.segments[0].adapter_scales = scales;
    std::vector<float> seen =
        read_back(*backend, backend->embed(step, *embedding, 1.5f));
    Values expected;
    for (int32_t token : step.tokens) {
      for (size_t j = 0; j < 64; ++j) {
        double value = table.values[size_t(token) * 64 + j];
        for (size_t r = 0; r < 2; ++r) {
          value += 3 * 0.5 * a[r * 32 + size_t(token)] * b[j * 2 + r];
        }
        expected.push_back(1.5 * value);
      }
    }
    expect_near(seen, expected, 1e-5);
  }
}

double activated(Activation activation, double x) {
  switch (activation) {
    case Activation::none:
      return x;
    case Activation::silu:
      return x / (1 + std::exp(-x));
    case Activation::gelu:
      return x / 2 * (1 + std::erf(x / std::numbers::sqrt2));
    case Activation::gelu_tanh:
      return x / 2 *
             (1 + std::tanh(
                      std::sqrt(2 / std::numbers::pi) *
                      (x + 0.044715 * x * x * x)));
    case Activation::relu:
      return std::max(x, 0.0);
    case Activation::relu_squared:
      return std::max(x, 0.0) * std::max(x, 0.0);
    case Activation::xielu:
      break;  // needs numbers: moe_variants_test.cpp
    case Activation::tanh:
      return std::tanh(x);
    case Activation::sigmoid:
      return 1 / (1 + std::exp(-x));
  }
  return 0;
}

TEST(GraphMlp, EveryActivationGatedAndNot) {
  auto backend = graph_backend();
  Values x = random_values(3 * 32, 2);
  Tensor input = tensor_of(*backend, x, 32);
  Matrix gate = plain_matrix(48, 32, DType::f32),
         up = plain_matrix(48, 32, DType::f32),
         down = plain_matrix(32, 48, DType::f32);
  auto gated = linear_of(*backend, {gate, up});
  auto single = linear_of(*backend, {up});
  auto out = linear_of(*backend, {down});
  for (Activation activation :
       {Activation::none,
        Activation::silu,
        Activation::gelu,
        Activation::gelu_tanh,
        Activation::relu,
        Activation::relu_squared,
        Activation::tanh,
        Activation::sigmoid}) {
    for (bool is_gated : {true, false}) {
      MlpWeights weights;
      weights.up = is_gated ? gated.get() : single.get();
      weights.down = out.get();
      weights.activation = activation;
      weights.gated = is_gated;
      LinearOptions options;
      options.residual = &input;
      options.output_scale = 2;
      Tensor y = backend->mlp(prompt_step(3), input, weights, options);
      Values inner = product(x, up.values, 32);
      Values gates = product(x, gate.values, 32);
      for (size_t i = 0; i < inner.size(); ++i) {
        inner[i] = is_gated ? activated(activation, gates[i]) * inner[i]
                            : activated(activation, inner[i]);
      }
      Values expected = product(inner, down.values, 48);
      for (size_t i = 0; i < expected.size(); ++i) {
        expected[i] = x[i] + 2 * expected[i];
      }
      expect_near(
          read_back(*backend, y),
          expected,
          1e-4,
          cat("activation ", int(activation), " gated ", is_gated));
    }
  }
}

TEST(GraphHead, AnswersTheWantedRowsCapped) {
  auto backend = graph_backend();
  Matrix matrix = affine_matrix(100, 32, 8, 32, DType::f16);
  Values a, b;
  auto head =
      linear_of(*backend, {matrix}, {term_of(0, 32, 0, 100, 2, false, a, b)});
  Values x = random_values(5 * 32), weight = random_values(32);
  NormWeights norm_weights;
  norm_weights.size = 32;
  norm_weights.eps = 1e-5f;
  norm_weights.weight = make_float(DType::f32, {32}, weight);
  auto norm = backend->prepare_norm(norm_weights);
  HeadArgs args;
  args.norm = norm.get();
  args.head = head.get();
  args.scale = 3;
  args.softcap = 5;

  Step step = prompt_step(5);
  std::vector<float> scales = {2};
  step.segments[0].num_rows = 4;
  Segment last;
  last.first_row = 4;
  last.num_rows = 1;
  last.prompt = false;
  last.adapter_scales = scales;
  step.segments.push_back(last);
  Values normed = rms_norm(x, 32, weight, 1e-5);
  Values all = product(normed, matrix.values, 32);
  for (size_t j = 0; j < 100; ++j) {
    for (size_t k = 0; k < 32; ++k) {
      for (size_t r = 0; r < 2; ++r) {
        all[400 + j] +=
            2 * 0.5 * normed[4 * 32 + k] * a[k * 2 + r] * b[r * 100 + j];
      }
    }
  }
  for (std::vector<int32_t> rows :
       {std::vector<int32_t>{1, 4}, {0, 1, 2, 3, 4}, {}}) {
    step.output_rows = rows;
    Tensor logits = backend->head(step, tensor_of(*backend, x, 32), args);
    EXPECT_EQ(logits.dtype(), DType::f32);
    EXPECT_EQ(logits.cols(), 100);
    Values expected;
    for (int32_t row : rows) {
      for (size_t j = 0; j < 100; ++j) {
        expected.push_back(5 * std::tanh(3 * all[size_t(row) * 100 + j] / 5));
      }
    }
    expect_near(read_back(*backend, logits), expected, 1e-4);
  }
}

TEST(GraphAdd, ScalesTheSecond) {
  auto backend = graph_backend();
  Values x = random_values(2 * 8), y = random_values(2 * 8);
  Values expected(16);
  for (size_t i = 0; i < 16; ++i) {
    expected[i] = x[i] + 0.22 * y[i];
  }
  Tensor sum = backend->add(
      prompt_step(2),
      tensor_of(*backend, x, 8),
      tensor_of(*backend, y, 8),
      0.22f);
  expect_near(read_back(*backend, sum), expected, 1e-6);
}

TEST(GraphBackend, WorksFromAnyThread) {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Linear> linear;
  Matrix matrix = affine_matrix(16, 64, 4, 32, DType::f32);
  std::thread([&] {
    backend = graph_backend();
    linear = linear_of(*backend, {matrix});
  }).join();
  Values x = random_values(2 * 64);
  Tensor y;
  std::thread([&] {
    y = backend->linear(
        prompt_step(2), tensor_of(*backend, x, 64), *linear, {});
  }).join();
  expect_near(read_back(*backend, y), product(x, matrix.values, 64), 1e-4);
  std::vector<float> again;
  std::thread([&] { again = read_back(*backend, y); }).join();
  expect_near(again, product(x, matrix.values, 64), 1e-4);
}

TEST(GraphBackend, DescribesItself) {
  EXPECT_EQ(graph_backend()->description().rfind("graph (MLX 0.32.4, ", 0), 0u);
}

TEST(GraphBackend, RefusesOtherActivationTypes) {
  try {
    graph_backend(DType::i32);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_STREQ(
        error.what(),
        "cannot compute in I32: activations are F32, F16 or BF16");
  }
}

}  // namespace
}  // namespace mlxcel::testing
