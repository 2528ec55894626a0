// Lightning attention by decays of its own. Such checkpoints are rare, so the
// loops are plain ones, laid out so that the compiler's vectors run along them.
#include "ops/cpu/recurrence.h"

#include <algorithm>

namespace mlxcel::cpu {

namespace {

// y += factor * x
void add_scaled(float* y, float factor, const float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    y[i] += factor * x[i];
  }
}

// A head of a sequence: its rows, and the tables' parts for it.
struct Head {
  RowsIn q, k, v;
  float* y;
  int64_t y_stride, dim, size;
  const float *query_decay, *key_decay, *inside;
  float block_decay;

  // Rows [first, first + rows) from the state [dim, dim] before them; `keys`
  // holds [dim, size], `scores` [size].
  void attend(
      int64_t first,
      int64_t rows,
      const float* state,
      float* keys,
      float* scores) const {
    for (int64_t j = 0; j < rows; ++j) {
      for (int64_t d = 0; d < dim; ++d) {
        keys[d * size + j] = k.at(first + j)[d];
      }
    }
    for (int64_t i = 0; i < rows; ++i) {
      const float* query = q.at(first + i);
      float* out = y + (first + i) * y_stride;
      std::fill_n(out, dim, 0.0f);
      std::fill_n(scores, rows, 0.0f);
      for (int64_t d = 0; d < dim; ++d) {
        add_scaled(out, query[d] * query_decay[i], state + d * dim, dim);
        add_scaled(scores, query[d], keys + d * size, rows);
      }
      for (int64_t j = 0; j < rows; ++j) {
        add_scaled(out, scores[j] * inside[i * size + j], v.at(first + j), dim);
      }
    }
  }

  // The state after the whole block that begins at `first`.
  void advance(int64_t first, float* state) const {
    for (int64_t i = 0; i < dim * dim; ++i) {
      state[i] *= block_decay;
    }
    for (int64_t j = 0; j < size; ++j) {
      const float *key = k.at(first + j), *value = v.at(first + j);
      for (int64_t d = 0; d < dim; ++d) {
        add_scaled(state + d * dim, key[d] * key_decay[j], value, dim);
      }
    }
  }
};

}  // namespace

void run_op(const RecurrenceCall& call, const LightningBlocks& op) {
  const Step& step = call.step;
  int64_t dim = op.head_dim, width = op.heads * dim;
  Tensor qkv = call.context.make(step.num_rows(), 3 * width);
  Phase activate{step.num_rows() * op.heads, [&](int64_t task) {
                   int64_t row = task / op.heads;
                   int64_t at = task % op.heads * 3 * dim;
                   call.kernels.silu(
                       data(*op.projection) + row * op.projection->cols() + at,
                       data(qkv) + row * qkv.cols() + at,
                       3 * dim);
                 }};
  Phase attend{
      int64_t(step.segments.size()) * op.heads, [&](int64_t task) {
        const Segment& segment = step.segments[size_t(task / op.heads)];
        int64_t index = task % op.heads, at = index * 3 * dim;
        Head head{
            .q = call.rows(qkv, segment, at),
            .k = call.rows(qkv, segment, at + dim),
            .v = call.rows(qkv, segment, at + 2 * dim),
            .y = data(call.out) + segment.first_row * width + index * dim,
            .y_stride = width,
            .dim = dim,
            .size = op.size,
            .query_decay = data(op.query_decay) + index * op.size,
            .key_decay = data(op.key_decay) + index * op.size,
            .inside = data(op.inside) + index * op.size * op.size,
            .block_decay = data(op.block_decay)[index]};
        std::vector<float> state(size_t(dim * dim));
        std::vector<float> keys(size_t(dim * op.size)), scores(size_t(op.size));
        for (int64_t row = 0; row < segment.num_rows; row += op.size) {
          int64_t rows = std::min<int64_t>(op.size, segment.num_rows - row);
          head.attend(row, rows, state.data(), keys.data(), scores.data());
          if (row + rows < segment.num_rows) {
            head.advance(row, state.data());
          }
        }
      }};
  call.run(
      {activate,
       attend,
       gate_phase(
           call,
           op.norm,
           1,
           [&](int64_t row, int64_t first) {
             return data(*op.projection) + row * op.projection->cols() +
                    3 * width + first;
           })},
      step.num_rows() * width * (dim + op.size));
}

}  // namespace mlxcel::cpu
