// Live adapter terms: y += factor * B (A x), for the rows that use them.
#include "ops/cpu/cpu_linear.h"

#include <algorithm>

namespace mlxcel::cpu {

std::vector<ActiveTerm> active_terms(
    const Step& step,
    std::span<const LowRankTerm> terms,
    std::span<const int32_t> rows) {
  std::vector<ActiveTerm> active;
  if (terms.empty()) {
    return active;
  }
  bool any = std::any_of(
      step.segments.begin(), step.segments.end(), [](const Segment& segment) {
        return std::any_of(
            segment.adapter_scales.begin(),
            segment.adapter_scales.end(),
            [](float scale) { return scale != 0; });
      });
  if (!any) {
    return active;
  }
  for (const LowRankTerm& term : terms) {
    ActiveTerm entry{&term, {}};
    for (const Segment& segment : step.segments) {
      if (size_t(term.adapter) >= segment.adapter_scales.size()) {
        continue;
      }
      float factor = segment.adapter_scales[size_t(term.adapter)] * term.scale;
      if (factor == 0) {
        continue;
      }
      int begin = segment.first_row, end = begin + segment.num_rows;
      if (rows.empty()) {
        for (int row = begin; row < end; ++row) {
          entry.rows.emplace_back(row, factor);
        }
        continue;
      }
      for (size_t i = 0; i < rows.size(); ++i) {
        if (rows[i] >= begin && rows[i] < end) {
          entry.rows.emplace_back(int(i), factor);
        }
      }
    }
    if (!entry.rows.empty()) {
      active.push_back(std::move(entry));
    }
  }
  return active;
}

void term_down(
    const Kernels& kernels,
    const LowRankTerm& term,
    int64_t in,
    int64_t begin,
    int64_t end,
    const float* x,
    float* t) {
  size_t element = size_of(term.a.dtype);
  if (term.rank_first) {
    kernels.term_dot(
        term.a.dtype,
        term.a.data + size_t(begin) * element,
        size_t(in) * element,
        0,
        term.rank,
        x + begin,
        end - begin,
        t);
    return;
  }
  size_t stride = size_t(term.rank) * element;
  std::fill_n(t, term.rank, 0.f);
  kernels.term_axpy(
      term.a.dtype,
      term.a.data + size_t(begin) * stride,
      stride,
      end - begin,
      0,
      term.rank,
      x + begin,
      1,
      t);
}

void term_up(
    const Kernels& kernels,
    const LowRankTerm& term,
    int64_t begin,
    int64_t end,
    const float* t,
    float factor,
    float* y,
    float* scratch) {
  size_t element = size_of(term.b.dtype);
  if (!term.rank_first) {
    kernels.term_axpy(
        term.b.dtype,
        term.b.data,
        size_t(term.rows) * element,
        term.rank,
        begin,
        end,
        t,
        factor,
        y);
    return;
  }
  kernels.term_dot(
      term.b.dtype,
      term.b.data,
      size_t(term.rank) * element,
      begin,
      end,
      t,
      term.rank,
      scratch);
  for (int64_t i = 0; i < end - begin; ++i) {
    y[i] += factor * scratch[i];
  }
}

}  // namespace mlxcel::cpu
