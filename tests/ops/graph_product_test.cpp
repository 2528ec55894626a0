// Products with packed matrices in the 16-bit types that GPUs compute in: few
// rows and many, sizes that no tile divides, and what is fused around them.
// (On CPU devices the backend computes in f32.)
#include "core/error.h"
#include "graph_support.h"

#include <array>

namespace mlxcel::testing {
namespace {

// Relative to sums of about unit size: the types' own rounding of weights and
// results.
double tolerance_of(DType dtype) {
  return dtype == DType::bf16 ? 0.04 : 0.006;
}

// A last bit of a result.
double relative_of(DType dtype) {
  return dtype == DType::bf16 ? 0x1p-8 : 0x1p-11;
}

Values rounded_values(size_t count, DType dtype) {
  Values values = random_values(count);
  make_float(dtype, {int64_t(count)}, values);
  return values;
}

// A matrix in a format with shared exponents or small floats as scales.
Matrix small_float_matrix(int64_t out, int64_t in, QuantMode mode) {
  // OCP e2m1's magnitudes.
  constexpr std::array<double, 8> kE2m1 = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  auto e4m3 = [](uint32_t code) {
    int exponent = int(code >> 3 & 15), mantissa = int(code & 7);
    double size = exponent == 0 ? std::ldexp(mantissa, -9)
                                : std::ldexp(8 + mantissa, exponent - 10);
    return code & 128 ? -size : size;
  };
  int bits = mode == QuantMode::mxfp8 ? 8 : 4;
  int group = mode == QuantMode::nvfp4 ? 16 : 32;
  Matrix m;
  m.weight.name = "small floats";
  m.weight.out = out;
  m.weight.in = in;
  m.weight.quant = {mode, bits, group};
  int64_t words = in * bits / 32, groups = in / group;
  std::vector<uint32_t> packed(size_t(out * words), 0);
  std::vector<uint8_t> scales(size_t(out * groups));
  std::uniform_int_distribution<uint32_t> any(0, 255);
  for (uint8_t& scale : scales) {
    // 2^-7 to 2^-4, or an e4m3 number below 0.25.
    scale = uint8_t(
        mode == QuantMode::nvfp4 ? any(generator()) % 40
                                 : 120 + any(generator()) % 4);
  }
  m.values.resize(size_t(out * in));
  for (int64_t i = 0; i < out * in; ++i) {
    uint32_t code = any(generator()) & ((1u << bits) - 1);
    if (bits == 8 && (code & 127) > 0x48) {
      code &= 0xbf;  // below 2
    }
    uint8_t scale = scales[size_t(i / group)];
    double number =
        bits == 8 ? e4m3(code) : (code & 8 ? -1 : 1) * kE2m1[code & 7];
    m.values[size_t(i)] =
        number *
        (mode == QuantMode::nvfp4 ? e4m3(scale) : std::ldexp(1, scale - 127));
    packed[size_t(i * bits / 32)] |= code << (i * bits % 32);
  }
  m.weight.weight =
      make_tensor(DType::u32, {out, words}, packed.data(), packed.size() * 4);
  m.weight.scales =
      make_tensor(DType::u8, {out, groups}, scales.data(), scales.size());
  return m;
}

std::unique_ptr<Linear> linear_of(Backend& backend, const Matrix& matrix) {
  LinearWeights weights;
  weights.name = "linear";
  weights.parts = {matrix.weight};
  return backend.prepare_linear(std::move(weights));
}

void check_product(
    Backend& backend, const Matrix& matrix, int rows, DType dtype) {
  int64_t in = matrix.weight.in;
  auto linear = linear_of(backend, matrix);
  Values x = rounded_values(size_t(rows * in), dtype);
  Tensor y =
      backend.linear(prompt_step(rows), tensor_of(backend, x, in), *linear, {});
  expect_near(
      read_back(backend, y),
      product(x, matrix.values, size_t(in)),
      tolerance_of(dtype),
      cat(to_string(matrix.weight.quant),
          ", ",
          rows,
          " rows of ",
          in,
          " times ",
          matrix.weight.out,
          ", ",
          dtype),
      relative_of(dtype));
}

TEST(GraphProduct, AffineFormatsInSixteenBits) {
  for (DType dtype : {DType::bf16, DType::f16}) {
    auto backend = graph_backend(dtype);
    for (int bits : {2, 3, 4, 5, 6, 8}) {
      for (int group : {32, 64, 128}) {
        for (int rows : {1, 3, 9, 70}) {
          check_product(
              *backend,
              affine_matrix(90, 384, bits, group, dtype),
              rows,
              dtype);
        }
      }
    }
  }
}

TEST(GraphProduct, SizesThatNoTileDivides) {
  auto backend = graph_backend(DType::bf16);
  for (int64_t in : {32, 64, 96, 128, 1056, 4352}) {
    for (int64_t out : {1, 8, 24, 129}) {
      for (int rows : {1, 8, 17}) {
        check_product(
            *backend,
            affine_matrix(out, in, 4, 32, DType::bf16),
            rows,
            DType::bf16);
      }
    }
  }
  // Enough rows for the kernel's larger tiles.
  check_product(
      *backend, affine_matrix(16400, 64, 4, 64, DType::bf16), 2, DType::bf16);
}

TEST(GraphProduct, SmallFloats) {
  for (DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    auto backend = graph_backend(dtype);
    for (QuantMode mode :
         {QuantMode::mxfp4, QuantMode::mxfp8, QuantMode::nvfp4}) {
      for (int rows : {1, 11, 70}) {
        check_product(*backend, small_float_matrix(40, 160, mode), rows, dtype);
      }
    }
  }
}

// residual + down(act(gate) * up), gate and up of norm(x).
TEST(GraphProduct, GatedMlpWithNormAndResidual) {
  constexpr int64_t kHidden = 192, kInner = 96;
  for (Activation activation :
       {Activation::silu, Activation::gelu_tanh, Activation::relu}) {
    auto backend = graph_backend(DType::bf16);
    Matrix up = affine_matrix(2 * kInner, kHidden, 4, 64, DType::bf16);
    Matrix down = affine_matrix(kHidden, kInner, 8, 32, DType::bf16);
    auto up_linear = linear_of(*backend, up);
    auto down_linear = linear_of(*backend, down);
    Values weight = rounded_values(kHidden, DType::bf16);
    NormWeights norm_weights;
    norm_weights.size = kHidden;
    norm_weights.eps = 1e-5f;
    norm_weights.weight_offset = 1;
    norm_weights.weight = make_float(DType::bf16, {kHidden}, weight);
    auto norm = backend->prepare_norm(norm_weights);
    for (double& w : weight) {
      w += 1;
    }
    // The norm is fused for the fewer rows alone.
    for (int rows : {1, 5, 100}) {
      Values x = rounded_values(size_t(rows * kHidden), DType::bf16);
      Tensor input = tensor_of(*backend, x, kHidden);
      MlpWeights mlp;
      mlp.up = up_linear.get();
      mlp.down = down_linear.get();
      mlp.activation = activation;
      LinearOptions options;
      options.norm = norm.get();
      options.residual = &input;
      Tensor y = backend->mlp(prompt_step(rows), input, mlp, options);

      Values both =
          product(rms_norm(x, kHidden, weight, 1e-5), up.values, kHidden);
      Values inner;
      for (int r = 0; r < rows; ++r) {
        for (int64_t i = 0; i < kInner; ++i) {
          double gate = both[size_t(r * 2 * kInner + i)];
          double act =
              activation == Activation::silu ? gate / (1 + std::exp(-gate))
              : activation == Activation::relu
                  ? std::max(gate, 0.0)
                  : gate / 2 *
                        (1 + std::tanh(
                                 0.7978845608028654 *
                                 (gate + 0.044715 * gate * gate * gate)));
          inner.push_back(act * both[size_t(r * 2 * kInner + kInner + i)]);
        }
      }
      Values expected = product(inner, down.values, kInner);
      double size = 0;
      for (size_t i = 0; i < expected.size(); ++i) {
        expected[i] += x[i];
        size = std::max(size, std::abs(expected[i]));
      }
      expect_near(
          read_back(*backend, y),
          expected,
          0.02 * size,
          cat("activation ", int(activation), ", ", rows, " rows"));
    }
  }
}

// All experts get a share, so the choice does not depend on rounding.
TEST(GraphProduct, ExpertsOfPackedMatrices) {
  constexpr int kExperts = 5;
  constexpr int64_t kHidden = 64, kInner = 96;
  auto backend = graph_backend(DType::bf16);
  Matrix router = plain_matrix(kExperts, kHidden, DType::bf16);
  std::vector<Matrix> ups, downs;
  ExpertWeights up_weights, down_weights;
  up_weights.name = "up";
  down_weights.name = "down";
  for (int e = 0; e < kExperts; ++e) {
    ups.push_back(affine_matrix(kInner, kHidden, 4, 64, DType::bf16));
    downs.push_back(affine_matrix(kHidden, kInner, 8, 32, DType::bf16));
    LinearWeights one;
    one.name = "expert";
    one.parts = {ups.back().weight};
    up_weights.experts.push_back(one);
    one.parts = {downs.back().weight};
    down_weights.experts.push_back(one);
  }
  auto up = backend->prepare_experts(up_weights);
  auto down = backend->prepare_experts(down_weights);
  auto route = linear_of(*backend, router);
  for (int rows : {1, 40}) {
    Values x = rounded_values(size_t(rows * kHidden), DType::bf16);
    MoeWeights moe;
    moe.router = route.get();
    moe.experts_per_token = kExperts;
    moe.up = up.get();
    moe.down = down.get();
    moe.activation = Activation::relu;
    moe.gated = false;
    Tensor y = backend->moe(
        prompt_step(rows), tensor_of(*backend, x, kHidden), moe, {});

    Values logits = product(x, router.values, kHidden);
    Values expected(size_t(rows * kHidden), 0.0);
    for (int e = 0; e < kExperts; ++e) {
      Values inner = product(x, ups[size_t(e)].values, kHidden);
      for (double& value : inner) {
        value = std::max(value, 0.0);
      }
      Values result = product(inner, downs[size_t(e)].values, kInner);
      for (int r = 0; r < rows; ++r) {
        double sum = 0;
        for (int i = 0; i < kExperts; ++i) {
          sum += std::exp(logits[size_t(r * kExperts + i)]);
        }
        double share = std::exp(logits[size_t(r * kExperts + e)]) / sum;
        for (int64_t j = 0; j < kHidden; ++j) {
          size_t at = size_t(r * kHidden + j);
          expected[at] += share * result[at];
        }
      }
    }
    expect_near(read_back(*backend, y), expected, 0.25, cat(rows, " rows"));
  }
}

}  // namespace
}  // namespace mlxcel::testing
