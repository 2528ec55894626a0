// The recurrences whose heads hold a matrix.
#include "ops/cpu/kernels/norm_kernels.h"
#include "ops/cpu/recurrence.h"

#include <algorithm>
#include <cmath>

namespace mlxcel::cpu {

namespace {

// Columns of a head's state that a task takes.
constexpr int64_t kColumns = 64;
// Tokens whose factors are worked out at a time.
constexpr int64_t kTokens = 16;

float softplus(float x) {
  return std::max(x, 0.0f) + std::log1p(std::exp(-std::fabs(x)));
}

float sigmoid(float x) {
  return 1 / (1 + std::exp(-x));
}

// Splits heads into runs of columns and runs `body(segment, head, first
// column, columns)` for each.
template <typename Body>
Phase head_phase(
    const RecurrenceCall& call, int heads, int64_t columns, Body body) {
  int64_t parts = (columns + kColumns - 1) / kColumns;
  int64_t each = heads * parts;
  return {
      int64_t(call.step.segments.size()) * each,
      [&call, parts, each, columns, body](int64_t task) {
        const Segment& segment = call.step.segments[size_t(task / each)];
        int64_t first = task % each % parts * kColumns;
        body(
            segment,
            task % each / parts,
            first,
            std::min(kColumns, columns - first));
      }};
}

// x / |x| * scale, with eps under the root.
void normalize(
    const NormKernels& kernels, float* x, float scale, float eps, int64_t n) {
  float length = std::sqrt(kernels.sum_of_squares(x, 0, n) + eps);
  kernels.scale(x, x, 0, scale / length, nullptr, nullptr, n);
}

}  // namespace

void run_op(const RecurrenceCall& call, const StateSpaceDual& op) {
  const Step& step = call.step;
  int64_t inner = op.heads * op.head_dim;
  int64_t channels = op.convolution.channels;
  int64_t group_heads = op.heads / op.groups;
  Tensor mixed = call.context.make(step.num_rows(), channels);
  auto scan = [&](const Segment& segment,
                  int64_t head,
                  int64_t first,
                  int64_t columns) {
    float decay[kTokens], input[kTokens * kColumns];
    float a = data(op.a)[head], d = data(op.d)[head];
    float bias = data(op.dt_bias)[head];
    int64_t b_at = inner + head / group_heads * op.state_size;
    RowsIn x = call.rows(mixed, segment, head * op.head_dim + first);
    RowsIn b = call.rows(mixed, segment, b_at);
    RowsIn c = call.rows(mixed, segment, b_at + op.groups * op.state_size);
    RowsIn dts = call.rows(*op.projection, segment, inner + channels + head);
    float* y =
        data(call.out) + segment.first_row * inner + head * op.head_dim + first;
    float* state = call.state(segment, op.state) +
                   head * op.state_size * op.head_dim + first;
    for (int64_t row = 0; row < segment.num_rows; row += kTokens) {
      int64_t rows = std::min(kTokens, segment.num_rows - row);
      for (int64_t t = 0; t < rows; ++t) {
        float dt = softplus(op.dt_scale * *dts.at(row + t) + bias);
        dt = std::min(std::max(dt, op.dt_min), op.dt_max);
        decay[t] = std::exp(dt * a);
        for (int64_t i = 0; i < columns; ++i) {
          input[t * kColumns + i] = dt * x.at(row + t)[i];
        }
      }
      call.kernels.plain(
          {.state = state,
           .pitch = op.head_dim,
           .keys = op.state_size,
           .columns = columns,
           .rows = rows,
           .decay = {decay, 1},
           .q = {c.at(row), c.stride},
           .k = {b.at(row), b.stride},
           .v = {input, kColumns},
           .y = y + row * inner,
           .y_stride = inner});
      for (int64_t t = row; t < row + rows; ++t) {
        for (int64_t i = 0; i < columns; ++i) {
          y[t * inner + i] += d * x.at(t)[i];
        }
      }
    }
  };
  call.run(
      {convolution_phase(
           call,
           op.convolution,
           *op.projection,
           {{0, channels, inner}},
           true,
           mixed),
       head_phase(call, op.heads, op.head_dim, scan),
       gate_phase(
           call,
           op.norm,
           op.z_scale,
           [&](int64_t row, int64_t first) {
             return data(*op.projection) + row * op.projection->cols() + first;
           })},
      step.num_rows() * inner * op.state_size);
}

void run_op(const RecurrenceCall& call, const GatedDelta& op) {
  const Step& step = call.step;
  int64_t keys = op.key_heads * op.key_dim;
  int64_t values = op.value_heads * op.value_dim;
  int64_t group = op.value_heads / op.key_heads;
  std::vector<ChannelRun> runs;
  for (int64_t head = 0; head < op.key_heads; ++head) {
    runs.push_back(
        {head * op.key_dim, op.key_dim, op.q.first + head * op.q.stride});
    runs.push_back(
        {keys + head * op.key_dim,
         op.key_dim,
         op.k.first + head * op.k.stride});
    runs.push_back(
        {2 * keys + head * group * op.value_dim,
         group * op.value_dim,
         op.v.first + head * op.v.stride});
  }
  Tensor mixed = call.context.make(step.num_rows(), 2 * keys + values);
  int64_t rates = op.decay_by_channel ? op.key_dim : 1;
  Tensor decays = call.context.make(step.num_rows(), op.value_heads * rates);
  Tensor betas = call.context.make(step.num_rows(), op.value_heads);
  const NormKernels& norms = norm_kernels(call.context.isa);

  Phase prepare{step.num_rows() * op.key_heads, [&](int64_t task) {
                  int64_t row = task / op.key_heads, head = task % op.key_heads;
                  float* q =
                      data(mixed) + row * mixed.cols() + head * op.key_dim;
                  float scale = 1 / std::sqrt(float(op.key_dim));
                  constexpr float eps = 1e-6f;  // of the reference kernels
                  normalize(norms, q, scale, eps, op.key_dim);
                  normalize(norms, q + keys, 1, eps, op.key_dim);
                  const float* beta =
                      data(*op.projection) + row * op.projection->cols() +
                      op.beta_columns.first + head * op.beta_columns.stride;
                  for (int64_t i = 0; i < group; ++i) {
                    data(betas)[row * op.value_heads + head * group + i] =
                        op.beta_scale * sigmoid(beta[i]);
                  }
                  const float* decay =
                      data(*op.decay) + row * op.decay->cols() +
                      op.decay_columns.first + head * op.decay_columns.stride;
                  int64_t first = head * group * rates;
                  for (int64_t i = 0; i < group * rates; ++i) {
                    data(decays)[row * decays.cols() + first + i] = std::exp(
                        data(op.a)[first + i] *
                        softplus(decay[i] + data(op.dt_bias)[first + i]));
                  }
                }};
  auto scan = [&](const Segment& segment,
                  int64_t head,
                  int64_t first,
                  int64_t columns) {
    int64_t key = head / group * op.key_dim;
    call.kernels.delta(
        {.state = call.state(segment, op.state) +
                  head * op.key_dim * op.value_dim + first,
         .pitch = op.value_dim,
         .keys = op.key_dim,
         .columns = columns,
         .rows = segment.num_rows,
         .decay_by_key = op.decay_by_channel,
         .decay = call.rows(decays, segment, head * rates),
         .q = call.rows(mixed, segment, key),
         .k = call.rows(mixed, segment, keys + key),
         .v = call.rows(mixed, segment, 2 * keys + head * op.value_dim + first),
         .beta = call.rows(betas, segment, head),
         .y = data(call.out) + segment.first_row * values +
              head * op.value_dim + first,
         .y_stride = values});
  };
  call.run(
      {convolution_phase(
           call, op.convolution, *op.projection, runs, true, mixed),
       prepare,
       head_phase(call, op.value_heads, op.value_dim, scan),
       gate_phase(
           call,
           op.norm,
           1,
           [&](int64_t row, int64_t feature) {
             int64_t head = feature / (group * op.value_dim);
             return data(*op.gate) + row * op.gate->cols() +
                    op.gate_columns.first + head * op.gate_columns.stride +
                    feature % (group * op.value_dim);
           })},
      step.num_rows() * values * op.key_dim);
}

void run_op(const RecurrenceCall& call, const LightningAttention& op) {
  const Step& step = call.step;
  int64_t width = op.heads * op.head_dim;
  Tensor qkv = call.context.make(step.num_rows(), 3 * width);
  Phase activate{step.num_rows() * op.heads, [&](int64_t task) {
                   int64_t row = task / op.heads;
                   int64_t at = task % op.heads * 3 * op.head_dim;
                   call.kernels.silu(
                       data(*op.projection) + row * op.projection->cols() + at,
                       data(qkv) + row * qkv.cols() + at,
                       3 * op.head_dim);
                 }};
  auto scan = [&](const Segment& segment,
                  int64_t head,
                  int64_t first,
                  int64_t columns) {
    int64_t at = head * 3 * op.head_dim;
    call.kernels.plain(
        {.state = call.state(segment, op.state) +
                  head * op.head_dim * op.head_dim + first,
         .pitch = op.head_dim,
         .keys = op.head_dim,
         .columns = columns,
         .rows = segment.num_rows,
         .decay = {data(op.decay) + head, 0},
         .q = call.rows(qkv, segment, at),
         .k = call.rows(qkv, segment, at + op.head_dim),
         .v = call.rows(qkv, segment, at + 2 * op.head_dim + first),
         .y = data(call.out) + segment.first_row * width + head * op.head_dim +
              first,
         .y_stride = width});
  };
  call.run(
      {activate,
       head_phase(call, op.heads, op.head_dim, scan),
       gate_phase(
           call,
           op.norm,
           1,
           [&](int64_t row, int64_t first) {
             return data(*op.projection) + row * op.projection->cols() +
                    3 * width + first;
           })},
      step.num_rows() * width * op.head_dim);
}

void run_op(const RecurrenceCall& call, const Rwkv7& op) {
  const Step& step = call.step;
  int64_t dim = op.head_dim, width = op.heads * dim;
  // What the update reads, side by side: w, k, v, -kk and kk * a.
  Tensor parts = call.context.make(step.num_rows(), 5 * width);
  const NormKernels& norms = norm_kernels(call.context.isa);
  auto at = [&](const Tensor& tensor, int64_t row, int64_t first) {
    return data(tensor) + row * tensor.cols() + first;
  };
  Phase prepare{
      step.num_rows() * op.heads, [&](int64_t task) {
        int64_t row = task / op.heads, first = task % op.heads * dim;
        float* w = at(parts, row, first);
        float *k = w + width, *v = k + width, *a = v + width, *b = a + width;
        const float* key = at(*op.k, row, first);
        for (int64_t i = 0; i < dim; ++i) {
          b[i] = key[i] * data(op.k_k)[first + i];
        }
        float length = std::sqrt(norms.sum_of_squares(b, 0, dim));
        constexpr float least = 1e-7f;  // of the reference
        float factor = 1 / std::max(length, least);
        for (int64_t i = 0; i < dim; ++i) {
          constexpr float rate = 0.606531f;  // e^-1/2
          w[i] = std::exp(-rate * sigmoid(at(*op.w, row, first)[i]));
          float rewrite = sigmoid(at(*op.a, row, first)[i]);
          k[i] = key[i] * (1 + (rewrite - 1) * data(op.k_a)[first + i]);
          v[i] = at(*op.v, row, first)[i];
          if (op.v_mix != nullptr) {
            v[i] += (at(*op.v_first, row, first)[i] - v[i]) *
                    sigmoid(at(*op.v_mix, row, first)[i]);
          }
          float kk = b[i] * factor;
          a[i] = -kk;
          b[i] = kk * rewrite;
        }
      }};
  auto scan = [&](const Segment& segment,
                  int64_t head,
                  int64_t first,
                  int64_t columns) {
    auto part = [&](int64_t index) {
      return call.rows(parts, segment, index * width + head * dim);
    };
    RowsIn v = part(2);
    call.kernels.lerp(
        {.state = call.state(segment, op.state) + head * dim * dim + first,
         .pitch = dim,
         .keys = dim,
         .columns = columns,
         .rows = segment.num_rows,
         .decay_by_key = true,
         .decay = part(0),
         .q = call.rows(*op.r, segment, head * dim),
         .k = part(1),
         .v = {v.first + first, v.stride},
         .a = part(3),
         .b = part(4),
         .y = data(call.out) + segment.first_row * width + head * dim + first,
         .y_stride = width});
  };
  Phase finish{step.num_rows() * op.heads, [&](int64_t task) {
                 int64_t row = task / op.heads, first = task % op.heads * dim;
                 float* y = data(call.out) + row * width + first;
                 float mean = norms.sum(y, dim) / float(dim);
                 float variance =
                     norms.sum_of_squares(y, mean, dim) / float(dim);
                 norms.scale(
                     y,
                     y,
                     mean,
                     1 / std::sqrt(variance + op.eps),
                     data(op.norm_weight) + first,
                     data(op.norm_bias) + first,
                     dim);
                 const float* r = at(*op.r, row, first);
                 const float* k = at(parts, row, width + first);
                 const float* v = at(parts, row, 2 * width + first);
                 float bonus = 0;
                 for (int64_t i = 0; i < dim; ++i) {
                   bonus += r[i] * k[i] * data(op.r_k)[first + i];
                 }
                 for (int64_t i = 0; i < dim; ++i) {
                   y[i] = (y[i] + bonus * v[i]) * at(*op.g, row, first)[i];
                 }
               }};
  call.run(
      {prepare, head_phase(call, op.heads, dim, scan), finish},
      step.num_rows() * width * dim);
}

}  // namespace mlxcel::cpu
