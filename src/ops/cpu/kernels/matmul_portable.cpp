// Kernels without instruction-set intrinsics: f32 arithmetic throughout, sums
// in sixteen lanes that compilers map to whatever vectors the target has.
#include "ops/cpu/kernels/unpack.h"

#include <cmath>

namespace mlxcel::cpu {
namespace {

constexpr int kLanes = 16;
constexpr int kTileRows = 8;
constexpr int kPanelRows = 16;
constexpr int64_t kPanelColumns = 2048;  // a panel of 128 kB

constexpr size_t round_up(size_t value, size_t to) {
  return (value + to - 1) / to * to;
}

// Adds x . w to the lanes; the order depends on the column alone.
void accumulate(const float* x, const float* w, int64_t count, float* lanes) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      lanes[l] += x[i + l] * w[i + l];
    }
  }
  for (int l = 0; i + l < count; ++l) {
    lanes[l] += x[i + l] * w[i + l];
  }
}

float sum_lanes(float* lanes) {
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int l = 0; l < width; ++l) {
      lanes[l] += lanes[l + width];
    }
  }
  return lanes[0];
}

Arithmetic decode_arithmetic(const Matrix&, bool) {
  return Arithmetic::f32;
}

Arithmetic prefill_arithmetic(const Matrix&, bool, bool) {
  return Arithmetic::f32;
}

size_t decode_row_bytes(const Matrix& m) {
  return round_up(size_t(m.in) * sizeof(float), 64);
}

void decode_pack(
    const Matrix& m, const float* x, int row, int, std::byte* out) {
  std::memcpy(
      out + size_t(row) * decode_row_bytes(m), x, size_t(m.in) * sizeof(float));
}

void decode(
    const Matrix& m,
    int64_t begin,
    int64_t end,
    const std::byte* x,
    int rows,
    float* y,
    int64_t ldy) {
  constexpr int64_t kColumns = 512;
  constexpr int kRowBlock = 16;
  size_t x_stride = decode_row_bytes(m);
  float w[kColumns];
  float lanes[kRowBlock][kLanes];
  for (int64_t o = begin; o < end; ++o) {
    for (int r0 = 0; r0 < rows; r0 += kRowBlock) {
      int count = rows - r0 < kRowBlock ? rows - r0 : kRowBlock;
      std::memset(lanes, 0, sizeof(lanes));
      for (int64_t k = 0; k < m.in; k += kColumns) {
        int64_t k1 = k + kColumns < m.in ? k + kColumns : m.in;
        unpack_row(m, o, k, k1, w);
        for (int r = 0; r < count; ++r) {
          const auto* row =
              reinterpret_cast<const float*>(x + size_t(r0 + r) * x_stride);
          accumulate(row + k, w, k1 - k, lanes[r]);
        }
      }
      for (int r = 0; r < count; ++r) {
        y[(r0 + r) * ldy + o - begin] = sum_lanes(lanes[r]);
      }
    }
  }
}

// Tiles hold the rows one after the other, panels likewise.
size_t tile_bytes(const Matrix& m, int rows) {
  return round_up(size_t(m.in) * size_t(rows) * sizeof(float), 64);
}

void tile_pack(
    const Matrix& m, const float* x, int64_t ldx, int rows, std::byte* out) {
  for (int r = 0; r < rows; ++r) {
    std::memcpy(
        out + size_t(r) * size_t(m.in) * sizeof(float),
        x + r * ldx,
        size_t(m.in) * sizeof(float));
  }
}

int64_t panel_columns(const Matrix&) {
  return kPanelColumns;
}

size_t panel_bytes(const Matrix& m) {
  int64_t columns = m.in < kPanelColumns ? m.in : kPanelColumns;
  return round_up(size_t(columns) * kPanelRows * sizeof(float), 64);
}

void panel_pack(
    const Matrix& m,
    int64_t begin,
    int64_t end,
    int64_t k0,
    int64_t k1,
    std::byte* out) {
  auto* panel = reinterpret_cast<float*>(out);
  for (int64_t o = begin; o < end; ++o) {
    unpack_row(m, o, k0, k1, panel + (o - begin) * (k1 - k0));
  }
}

void panel_multiply(
    const Matrix& m,
    const std::byte* panel,
    int panel_count,
    int64_t k0,
    int64_t k1,
    const std::byte* tile,
    int rows,
    float* y,
    int64_t ldy) {
  const auto* w = reinterpret_cast<const float*>(panel);
  const auto* x = reinterpret_cast<const float*>(tile);
  for (int r = 0; r < rows; ++r) {
    for (int o = 0; o < panel_count; ++o) {
      float lanes[kLanes] = {};
      accumulate(x + r * m.in + k0, w + o * (k1 - k0), k1 - k0, lanes);
      float sum = sum_lanes(lanes);
      float* cell = y + r * ldy + o;
      *cell = k0 > 0 ? *cell + sum : sum;
    }
  }
}

float activate_one(Activation activation, float x) {
  switch (activation) {
    case Activation::none:
      return x;
    case Activation::silu:
      return x / (1 + std::exp(-x));
    case Activation::gelu:
      return 0.5f * x * (1 + std::erf(x * 0.70710678f));
    case Activation::gelu_tanh:
      return 0.5f * x *
             (1 + std::tanh(0.79788456f * (x + 0.044715f * x * x * x)));
    case Activation::relu:
      return x > 0 ? x : 0;
    case Activation::relu_squared:
      return x > 0 ? x * x : 0;
    case Activation::xielu:
      break;  // NormKernels::xielu
    case Activation::tanh:
      return std::tanh(x);
    case Activation::sigmoid:
      return 1 / (1 + std::exp(-x));
  }
  return x;
}

void activate(
    Activation activation,
    const float* gate,
    const float* up,
    float* out,
    int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    float value = activate_one(activation, gate[i]);
    out[i] = up != nullptr ? value * up[i] : value;
  }
}

void term_dot(
    DType dtype,
    const std::byte* matrix,
    size_t stride,
    int64_t begin,
    int64_t end,
    const float* x,
    int64_t in,
    float* y) {
  for (int64_t j = begin; j < end; ++j) {
    const std::byte* row = matrix + size_t(j) * stride;
    float lanes[kLanes] = {};
    for (int64_t i = 0; i < in; ++i) {
      lanes[i % kLanes] += unpack_float(dtype, row, i) * x[i];
    }
    y[j - begin] = sum_lanes(lanes);
  }
}

void term_axpy(
    DType dtype,
    const std::byte* matrix,
    size_t stride,
    int64_t count,
    int64_t begin,
    int64_t end,
    const float* t,
    float factor,
    float* y) {
  for (int64_t i = 0; i < count; ++i) {
    const std::byte* row = matrix + size_t(i) * stride;
    float f = factor * t[i];
    for (int64_t j = begin; j < end; ++j) {
      y[j - begin] += f * unpack_float(dtype, row, j);
    }
  }
}

void read_row(const Matrix& m, int64_t row, float scale, float* out) {
  unpack_row(m, row, 0, m.in, out);
  for (int64_t k = 0; k < m.in; ++k) {
    out[k] *= scale;
  }
}

}  // namespace

const Kernels kPortableKernels = {
    .decode_arithmetic = decode_arithmetic,
    .prefill_arithmetic = prefill_arithmetic,
    .decode_row_bytes = decode_row_bytes,
    .decode_pack = decode_pack,
    .decode = decode,
    .tile_rows = kTileRows,
    .panel_rows = kPanelRows,
    .tile_bytes = tile_bytes,
    .tile_pack = tile_pack,
    .panel_columns = panel_columns,
    .panel_bytes = panel_bytes,
    .panel_pack = panel_pack,
    .panel_multiply = panel_multiply,
    .activate = activate,
    .term_dot = term_dot,
    .term_axpy = term_axpy,
    .read_row = read_row,
};

}  // namespace mlxcel::cpu
