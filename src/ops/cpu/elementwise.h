// The ops that work row by row: norms and sums.
#pragma once

#include "ops/cpu/context.h"

namespace mlxcel::cpu {

// Calls `row` with each row's number, on all threads where that pays.
template <typename Row>
void for_rows(Context& context, int64_t rows, int64_t cols, Row row) {
  // Below this many values a fork costs more than it saves.
  constexpr int64_t kMinValues = 16384;
  if (rows * cols < kMinValues) {
    for (int64_t i = 0; i < rows; ++i) {
      row(i);
    }
    return;
  }
  context.pool.run([&](int thread) {
    auto [begin, end] = split_range(rows, thread, context.pool.size());
    for (int64_t i = begin; i < end; ++i) {
      row(i);
    }
  });
}

Tensor norm(Context& context, const Tensor& x, const Norm& norm);
Tensor add(Context& context, const Tensor& x, const Tensor& y, float scale);
Tensor multiply(
    Context& context,
    const Tensor& x,
    const Tensor* y,
    const MultiplyOptions& options);
Tensor weighted_sum(
    Context& context,
    const Tensor& base,
    const std::vector<Tensor>& inputs,
    const Tensor& weights,
    int64_t first);
Tensor match_size(Context& context, const Tensor& x, const Tensor& like);
Tensor cut_below(
    Context& context, const Tensor& x, int64_t columns, float deviations);

}  // namespace mlxcel::cpu
