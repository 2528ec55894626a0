#include "core/error.h"
#include "ops/matmul_support.h"

#include <array>
#include <cmath>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mlxcel {
namespace {

using testing::affine;
using testing::make_context;
using testing::make_step;
using testing::make_tensor;
using testing::random_matrix;
using testing::random_values;
using testing::TestMatrix;
using testing::values_of;

struct Format {
  DType dtype;
  Quant quant;
  DType activation;
};

std::vector<Format> all_formats() {
  std::vector<Format> formats = {
      {DType::f32, {}, DType::f32},
      {DType::f32, {}, DType::f16},
      {DType::f16, {}, DType::f16},
      {DType::bf16, {}, DType::bf16},
      {DType::bf16, {}, DType::f32},
      {DType::f16, {}, DType::f32}};
  for (int bits : {4, 8}) {
    for (int group : {32, 64, 128}) {
      formats.push_back({DType::f16, affine(bits, group), DType::f16});
      formats.push_back({DType::bf16, affine(bits, group), DType::bf16});
      formats.push_back({DType::f32, affine(bits, group), DType::f32});
      formats.push_back({DType::bf16, affine(bits, group), DType::f32});
    }
  }
  for (int bits : {1, 2, 3, 5, 6}) {
    formats.push_back({DType::f16, affine(bits, 64), DType::f16});
  }
  return formats;
}

std::string describe(const Format& f) {
  return cat(f.dtype, " ", to_string(f.quant), ", activations ", f.activation);
}

// y = x W^T in f64; `size` receives the sum of |x w|.
double dot(
    const std::vector<float>& x,
    const std::vector<float>& w,
    int64_t in,
    int64_t row,
    int64_t out,
    double* size) {
  double sum = 0;
  *size = 0;
  for (int64_t k = 0; k < in; ++k) {
    double product = double(x[size_t(row * in + k)]) * w[size_t(out * in + k)];
    sum += product;
    *size += std::abs(product);
  }
  return sum;
}

// Activations of 8 bits with a scale for each eight columns, multiples of a
// 4095th of what the row's largest would need. Generated rows take eight
// columns in turn; prompts take them from 32: 4 columns in 8, twice.
double allowed_error_of_eights(
    const float* x, const float* w, int64_t in, bool prompt) {
  double top = 0, size = 0, variance = 0;
  for (int64_t k = 0; k < in; ++k) {
    top = std::max(top, std::abs(double(x[k])));
  }
  for (int64_t first = 0; first < in; first += 32) {
    double most[4] = {};
    auto eight = [prompt](int64_t k) {
      return prompt ? k / 16 * 2 + k / 4 % 2 : k / 8;
    };
    for (int64_t k = 0; k < 32; ++k) {
      double& value = most[eight(k)];
      value = std::max(value, std::abs(double(x[first + k])));
    }
    for (int64_t k = 0; k < 32; ++k) {
      double step = (most[eight(k)] + top / 4095) / 127;
      size += std::abs(double(x[first + k]) * w[first + k]);
      variance += std::pow(step * w[first + k], 2) / 12;
    }
  }
  return 6 * std::sqrt(variance) + 3e-6 * size + 1e-5;
}

// What a sum may be off by: six standard deviations of independent rounding
// errors, and those of f32 sums.
double allowed_error(
    Isa isa,
    const Format& f,
    bool prompt,
    bool int8,
    const float* x,
    const float* w,
    int64_t in) {
  bool exact = f.dtype == DType::f32 || f.activation == DType::f32;
  bool sums_of_bytes = isa == Isa::avx2 || isa == Isa::avx512;
  bool eights = prompt ? sums_of_bytes && f.quant.bits <= 5
                       : isa == Isa::avx512_bf16 && f.quant.bits == 4;
  if (eights && !exact && f.quant.packed()) {
    return allowed_error_of_eights(x, w, in, prompt);
  }
  bool codes = f.quant.packed() && (f.quant.bits == 4 || f.quant.bits == 8);
  double size = 0, variance = 0;
  for (int64_t first = 0; first < in; first += 128) {
    int64_t end = std::min(first + 128, in);
    double most = 0;
    for (int64_t k = first; k < end; ++k) {
      most = std::max(most, std::abs(double(x[k])));
    }
    for (int64_t k = first; k < end; ++k) {
      size += std::abs(double(x[k]) * w[k]);
      if (exact) {
        continue;
      }
      if (prompt && int8 && codes) {
        variance += std::pow(most / 127 * w[k], 2) / 12;
      } else if (prompt) {  // both factors to bf16, seven bits of fraction
        variance += std::pow(x[k] * w[k] * 0x1p-7, 2) * 2 / 12;
      } else if (codes) {
        variance += std::pow(most / 32767 * w[k], 2) / 12;
      }
    }
  }
  return 6 * std::sqrt(variance) + 3e-6 * size + 1e-5;
}

class LinearOnIsa : public ::testing::TestWithParam<Isa> {};

INSTANTIATE_TEST_SUITE_P(
    Isas,
    LinearOnIsa,
    ::testing::ValuesIn(supported_isas()),
    [](const auto& isa) { return std::string(name_of(isa.param)); });

void expect_products(Isa isa, const Format& format, bool int8) {
  SCOPED_TRACE(describe(format) + (int8 ? ", int8 prefill" : ""));
  auto context = make_context(isa, 2, format.activation, int8);
  std::mt19937 random(7);
  int64_t group = format.quant.packed() ? format.quant.group_size : 1;
  for (int64_t in : {group * 3, group * 9, int64_t(640), int64_t(2304)}) {
    for (int64_t out : {1, 19, 70}) {
      in = in / group * group;
      TestMatrix m = random_matrix(
          random, out, in, format.dtype, format.quant, int(out % 4));
      auto linear =
          cpu::prepare_linear(*context, {.name = "test", .parts = {m.weight}});
      for (auto [prompt, rows] :
           {std::pair(0, 1),
            {0, 2},
            {0, 7},
            {1, 1},
            {5, 8},
            {17, 17},
            {13, 30}}) {
        std::vector<float> x = random_values(random, rows * in);
        x[size_t(in / 2)] = 40;  // an outlier
        Tensor y = cpu::linear(
            *context,
            make_step(prompt, rows),
            make_tensor(*context, rows, x),
            *linear,
            {});
        std::vector<float> got = values_of(y);
        for (int row = 0; row < rows; ++row) {
          for (int64_t o = 0; o < out; ++o) {
            double size = 0;
            double expected = dot(x, m.values, in, row, o, &size);
            double allowed = allowed_error(
                isa,
                format,
                row < prompt,
                int8,
                &x[size_t(row * in)],
                &m.values[size_t(o * in)],
                in);
            ASSERT_NEAR(got[size_t(row * out + o)], expected, allowed)
                << "in " << in << " out " << out << " rows " << rows
                << " prompt " << prompt << " row " << row << " o " << o;
          }
        }
      }
    }
  }
}

TEST_P(LinearOnIsa, MatchesF64LoopInEveryFormat) {
  for (const Format& format : all_formats()) {
    expect_products(GetParam(), format, false);
  }
}

TEST_P(LinearOnIsa, MatchesF64LoopWithInt8Prefill) {
  for (const Format& format : all_formats()) {
    expect_products(GetParam(), format, true);
  }
}

// The largest codes by the largest activations: sums in few bits hold them.
TEST_P(LinearOnIsa, HoldsTheLargestSums) {
  for (int bits : {1, 2, 3, 4, 5, 6, 8}) {
    for (int group : {32, 128}) {
      Format format{DType::f16, affine(bits, group), DType::f16};
      SCOPED_TRACE(describe(format));
      int64_t in = 384, out = 20;
      auto context = make_context(GetParam(), 1, format.activation);
      std::mt19937 random(13);
      TestMatrix m = random_matrix(random, out, in, format.dtype, format.quant);
      std::vector<std::byte> ones(m.weight.weight.bytes, std::byte(0xff));
      m.weight.weight =
          testing::tensor_at(DType::u32, {out, in * bits / 32}, ones);
      auto half_at = [](const WeightTensor& tensor, int64_t index) {
        uint16_t half;
        std::memcpy(&half, tensor.data + 2 * index, sizeof(half));
        return f16_to_f32(half);
      };
      for (int64_t i = 0; i < out * in; ++i) {
        m.values[size_t(i)] =
            half_at(m.weight.scales, i / group) * float((1 << bits) - 1) +
            half_at(m.weight.biases, i / group);
      }
      auto linear =
          cpu::prepare_linear(*context, {.name = "test", .parts = {m.weight}});
      for (float value : {1.5f, -1.5f}) {
        for (auto [prompt, rows] :
             {std::pair(7, 7), {0, 1}, {0, 4}, {0, 7}, {0, 17}}) {
          std::vector<float> x(size_t(rows * in), value);
          std::vector<float> got = values_of(cpu::linear(
              *context,
              make_step(prompt, rows),
              make_tensor(*context, rows, x),
              *linear,
              {}));
          for (int64_t o = 0; o < out; ++o) {
            double size = 0;
            double expected = dot(x, m.values, in, 0, o, &size);
            // bf16 rounds each weight by up to 2^-9, all alike here.
            double allowed = size * (prompt > 0 ? 0x1p-8 : 0x1p-12);
            for (int row = 0; row < rows; ++row) {
              ASSERT_NEAR(got[size_t(row * out + o)], expected, allowed)
                  << row << " " << o;
            }
          }
        }
      }
    }
  }
}

// A row's bits depend on its role alone: not on other rows, the chunk, or the
// number of threads.
TEST_P(LinearOnIsa, SameBitsAloneAndInABatch) {
  for (bool int8 : {false, true}) {
    for (const Format& format : all_formats()) {
      SCOPED_TRACE(describe(format));
      auto one = make_context(GetParam(), 1, format.activation, int8);
      auto three = make_context(GetParam(), 3, format.activation, int8);
      std::mt19937 random(11);
      int64_t in = 1152, out = 83;
      if (!format.quant.packed()) {
        in += 5;
      }
      TestMatrix m = random_matrix(random, out, in, format.dtype, format.quant);
      auto alone =
          cpu::prepare_linear(*one, {.name = "test", .parts = {m.weight}});
      auto batch =
          cpu::prepare_linear(*three, {.name = "test", .parts = {m.weight}});
      int rows = 67, prompt = 29;
      std::vector<float> x = random_values(random, rows * in);
      std::vector<float> all = values_of(cpu::linear(
          *three,
          make_step(prompt, rows),
          make_tensor(*three, rows, x),
          *batch,
          {}));
      auto expect_same = [&](int first, int count, bool is_prompt) {
        std::vector<float> part(
            x.begin() + first * in, x.begin() + (first + count) * in);
        std::vector<float> got = values_of(cpu::linear(
            *one,
            make_step(is_prompt ? count : 0, count),
            make_tensor(*one, count, part),
            *alone,
            {}));
        std::vector<float> wanted(
            all.begin() + first * out, all.begin() + (first + count) * out);
        ASSERT_EQ(got, wanted) << first << " " << count;
      };
      for (int row : {0, 13, 28}) {
        expect_same(row, 1, true);
      }
      expect_same(3, 17, true);
      for (int row : {29, 40, 66}) {
        expect_same(row, 1, false);
      }
      for (int count : {2, 3, 4, 5, 8, 9, 16}) {
        expect_same(31, count, false);
      }
    }
  }
}

// Whichever kernel the number of generated rows asks for.
TEST_P(LinearOnIsa, SameBitsForAnyNumberOfGeneratedRows) {
  for (int bits : {4, 8}) {
    for (int group : {32, 64, 128}) {
      Format format{DType::bf16, affine(bits, group), DType::bf16};
      SCOPED_TRACE(describe(format));
      auto context = make_context(GetParam(), 1, format.activation);
      std::mt19937 random(17);
      // The last vector of codes is not whole; two chunks of columns.
      int64_t in = group * (group == 32 ? 27 : 13), out = 37;
      TestMatrix m = random_matrix(random, out, in, format.dtype, format.quant);
      auto linear =
          cpu::prepare_linear(*context, {.name = "test", .parts = {m.weight}});
      int most = 20;
      std::vector<float> x = random_values(random, most * in), alone;
      x[size_t(in + 5)] = 1000;
      std::fill_n(x.begin() + 2 * in, in, 0.0f);
      auto rows_from = [&](int first, int count) {
        std::vector<float> part(
            x.begin() + first * in, x.begin() + (first + count) * in);
        return values_of(cpu::linear(
            *context,
            make_step(0, count),
            make_tensor(*context, count, part),
            *linear,
            {}));
      };
      for (int row = 0; row < most; ++row) {
        std::vector<float> y = rows_from(row, 1);
        alone.insert(alone.end(), y.begin(), y.end());
      }
      for (int count = 2; count <= most; ++count) {
        std::vector<float> wanted(alone.end() - count * out, alone.end());
        ASSERT_EQ(rows_from(most - count, count), wanted) << count;
      }
    }
  }
}

// Rows of weights past which kernels read them in another order, in matrices
// with fewer outputs than a kernel takes at a time, as many, and some more.
TEST_P(LinearOnIsa, MultipliesLongRowsOfCodes) {
  for (auto [bits, group, in] :
       {std::tuple(4, 32, 4352),
        {4, 64, 1792},
        {4, 64, 2048},
        {4, 64, 4352},
        {4, 64, 8192},
        {4, 64, 8448},
        {4, 128, 4352},
        {8, 32, 2304},
        {8, 32, 2336},
        {8, 64, 2304}}) {
    for (DType dtype : {DType::bf16, DType::f16}) {
      Format format{dtype, affine(bits, group), DType::bf16};
      SCOPED_TRACE(describe(format));
      for (int64_t out : {1, 5, 8, 31}) {
        auto context = make_context(GetParam(), 2, format.activation);
        std::mt19937 random(19);
        TestMatrix m =
            random_matrix(random, out, in, format.dtype, format.quant);
        auto linear = cpu::prepare_linear(
            *context, {.name = "test", .parts = {m.weight}});
        int most = 10;
        std::vector<float> x = random_values(random, most * in);
        auto product = [&](int rows) {
          std::vector<float> part(x.begin(), x.begin() + rows * in);
          return values_of(cpu::linear(
              *context,
              make_step(0, rows),
              make_tensor(*context, rows, part),
              *linear,
              {}));
        };
        std::vector<float> alone = product(1);
        for (int64_t o = 0; o < out; ++o) {
          double size = 0;
          const float* w = &m.values[size_t(o * in)];
          double allowed =
              allowed_error(GetParam(), format, false, false, x.data(), w, in);
          ASSERT_NEAR(
              alone[size_t(o)], dot(x, m.values, in, 0, o, &size), allowed)
              << in << " " << out << " " << o;
        }
        for (int rows : {2, 4, most}) {
          std::vector<float> first = product(rows);
          first.resize(size_t(out));
          ASSERT_EQ(first, alone) << in << " " << out << " " << rows;
        }
      }
    }
  }
}

TEST_P(LinearOnIsa, AddsBiasNormResidualAndScale) {
  auto context = make_context(GetParam(), 2, DType::f32);
  std::mt19937 random(3);
  int64_t in = 96, first = 33, second = 20, out = first + second;
  TestMatrix a = random_matrix(random, first, in, DType::f32, {});
  TestMatrix b = random_matrix(random, second, in, DType::bf16, affine(4, 32));
  std::vector<float> bias = random_values(random, second);
  auto linear = cpu::prepare_linear(
      *context,
      {.name = "test",
       .parts = {a.weight, b.weight},
       .biases = {
           std::nullopt, testing::float_tensor(DType::f16, {second}, &bias)}});
  std::vector<float> norm_weight = random_values(random, in);
  std::vector<float> out_weight = random_values(random, out);
  cpu::CpuNorm norm(
      NormWeights{
          .size = in,
          .eps = 1e-5f,
          .weight = testing::float_tensor(DType::f32, {in}, &norm_weight)},
      GetParam());
  cpu::CpuNorm output_norm(
      NormWeights{
          .size = out,
          .eps = 1e-5f,
          .weight = testing::float_tensor(DType::f32, {out}, &out_weight)},
      GetParam());
  int rows = 21, prompt = 14;
  std::vector<float> x = random_values(random, rows * in);
  std::vector<float> residual = random_values(random, rows * out);
  Tensor r = make_tensor(*context, rows, residual);
  auto rms = [](std::vector<double> v, const std::vector<float>& weight) {
    double sum = 0;
    for (double value : v) {
      sum += value * value;
    }
    double factor = 1 / std::sqrt(sum / double(v.size()) + 1e-5);
    for (size_t i = 0; i < v.size(); ++i) {
      v[i] *= factor * weight[i];
    }
    return v;
  };
  for (bool with_output_norm : {false, true}) {
    std::vector<float> got = values_of(cpu::linear(
        *context,
        make_step(prompt, rows),
        make_tensor(*context, rows, x),
        *linear,
        {.norm = &norm,
         .output_norm = with_output_norm ? &output_norm : nullptr,
         .residual = &r,
         .output_scale = 0.5f}));
    for (int row = 0; row < rows; ++row) {
      std::vector<double> normed =
          rms({x.begin() + row * in, x.begin() + (row + 1) * in}, norm_weight);
      std::vector<double> y;
      for (int64_t o = 0; o < out; ++o) {
        const TestMatrix& m = o < first ? a : b;
        int64_t index = o < first ? o : o - first;
        double sum = o < first ? 0 : bias[size_t(index)];
        for (int64_t k = 0; k < in; ++k) {
          sum += normed[size_t(k)] * m.values[size_t(index * in + k)];
        }
        y.push_back(sum);
      }
      if (with_output_norm) {
        y = rms(y, out_weight);
      }
      for (int64_t o = 0; o < out; ++o) {
        double expected = residual[size_t(row * out + o)] + 0.5 * y[size_t(o)];
        ASSERT_NEAR(got[size_t(row * out + o)], expected, 1e-4)
            << row << " " << o;
      }
    }
  }
}

TEST_P(LinearOnIsa, AddsAdapterTermsToTheRowsThatUseThem) {
  auto context = make_context(GetParam(), 2, DType::f32);
  std::mt19937 random(5);
  int64_t in = 165, out = 75;
  TestMatrix m = random_matrix(random, out, in, DType::f32, {});
  std::vector<LowRankTerm> terms;
  std::vector<std::vector<float>> deltas;  // [out, in] of scale * B A
  int adapter = 0;
  for (DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (bool rank_first : {false, true}) {
      int64_t rank = std::array{5, 8, 4, 16, 1, 8}[size_t(adapter)];
      LowRankTerm term;
      term.adapter = adapter++;
      term.row_begin = 7 * adapter;
      term.rows = 30;
      term.rank = rank;
      term.scale = 0.25f;
      term.rank_first = rank_first;
      std::vector<float> a = random_values(random, in * rank);
      std::vector<float> b = random_values(random, rank * term.rows);
      term.a = testing::float_tensor(
          dtype, rank_first ? Shape{rank, in} : Shape{in, rank}, &a);
      term.b = testing::float_tensor(
          dtype,
          rank_first ? Shape{term.rows, rank} : Shape{rank, term.rows},
          &b);
      std::vector<float> delta(size_t(out * in));
      for (int64_t o = 0; o < term.rows; ++o) {
        for (int64_t k = 0; k < in; ++k) {
          double sum = 0;
          for (int64_t r = 0; r < rank; ++r) {
            sum += double(a[size_t(rank_first ? r * in + k : k * rank + r)]) *
                   b[size_t(rank_first ? o * rank + r : r * term.rows + o)];
          }
          delta[size_t((term.row_begin + o) * in + k)] =
              float(sum * term.scale);
        }
      }
      terms.push_back(term);
      deltas.push_back(delta);
    }
  }
  auto plain =
      cpu::prepare_linear(*context, {.name = "test", .parts = {m.weight}});
  auto linear = cpu::prepare_linear(
      *context, {.name = "test", .parts = {m.weight}, .terms = terms});
  for (auto [prompt, rows] : {std::pair(0, 1), {0, 9}, {6, 12}, {26, 26}}) {
    std::vector<float> x = random_values(random, rows * in);
    Step step = make_step(prompt, rows);
    std::vector<std::vector<float>> scales(step.segments.size());
    for (size_t s = 0; s < scales.size(); ++s) {
      if (s % 4 == 1) {
        continue;  // no adapters in this sequence
      }
      scales[s].assign(s % 4 == 2 ? 1 : terms.size(), 0);
      if (s % 4 != 2) {
        scales[s][s % terms.size()] = 1.5f;
        scales[s][(s + 3) % terms.size()] = -0.5f;
      }
      step.segments[s].adapter_scales = scales[s];
    }
    Tensor input = make_tensor(*context, rows, x);
    std::vector<float> base =
        values_of(cpu::linear(*context, step, input, *plain, {}));
    std::vector<float> got =
        values_of(cpu::linear(*context, step, input, *linear, {}));
    for (size_t s = 0; s < scales.size(); ++s) {
      const Segment& segment = step.segments[s];
      for (int row = segment.first_row;
           row < segment.first_row + segment.num_rows;
           ++row) {
        for (int64_t o = 0; o < out; ++o) {
          size_t at = size_t(row * out + o);
          double expected = base[at];
          bool used = false;
          for (size_t t = 0; t < scales[s].size(); ++t) {
            double size = 0;
            used = used || scales[s][t] != 0;
            expected += scales[s][t] * dot(x, deltas[t], in, row, o, &size);
          }
          if (used) {
            ASSERT_NEAR(got[at], expected, 3e-4) << row << " " << o;
          } else {
            ASSERT_EQ(got[at], base[at]) << row << " " << o;
          }
        }
      }
    }
  }
}

TEST(PrepareLinear, RefusesTensorsThatDoNotFit) {
  auto context = make_context(Isa::portable, 1, DType::f32);
  std::mt19937 random(1);
  TestMatrix m = random_matrix(random, 8, 64, DType::f16, affine(4, 32));
  m.weight.name = "model.q_proj";
  m.weight.scales.shape = {8, 3};
  try {
    cpu::prepare_linear(*context, {.name = "qkv", .parts = {m.weight}});
    FAIL() << "accepted";
  } catch (const CheckpointError& error) {
    EXPECT_EQ(
        error.summary(), "tensor model.q_proj.scales does not fit its linear");
    EXPECT_THAT(error.why(), ::testing::HasSubstr("[8, 3]"));
    EXPECT_THAT(error.why(), ::testing::HasSubstr("[8, 2]"));
  }
}

}  // namespace
}  // namespace mlxcel
