#include "ops/cpu/rope.h"

#include "core/error.h"
#include "ops/cpu/attention.h"

#include <cmath>

namespace mlxcel::cpu {

CpuRope::CpuRope(RopeTable table) : Rope(table.dims), table_(std::move(table)) {
  size_t pairs = size_t(table_.dims) / 2;
  if (table_.dims < 0 || table_.dims % 2 != 0 ||
      table_.inv_freq.size() != pairs) {
    throw ShapeError(
        "rotary table: frequencies do not fit",
        cat(table_.inv_freq.size(),
            " frequencies, ",
            table_.dims,
            " dimensions"),
        "check head_dim and partial_rotary_factor in config.json");
  }
  if (table_.switch_length > 0 && table_.long_inv_freq.size() != pairs) {
    throw ShapeError(
        "rotary table: long factors do not fit",
        cat(table_.long_inv_freq.size(),
            " factors, ",
            table_.dims,
            " dimensions"),
        "check rope_scaling.long_factor in config.json");
  }
}

const float* CpuRope::rows_of(const Step& step) const {
  wanted_.clear();
  for (const Segment& segment : step.segments) {
    bool use_long =
        table_.switch_length > 0 && segment.rope_length > table_.switch_length;
    for (int row = 0; row < segment.num_rows; ++row) {
      wanted_.push_back({segment.position + row, use_long});
    }
  }
  if (wanted_ == keys_ && !keys_.empty()) {
    return rows_.data();
  }
  size_t pairs = table_.inv_freq.size();
  rows_.resize(wanted_.size() * 2 * pairs);
  float* out = rows_.data();
  for (const Key& key : wanted_) {
    const auto& inv_freq =
        key.use_long ? table_.long_inv_freq : table_.inv_freq;
    float scale = key.use_long ? table_.long_scale : table_.scale;
    for (size_t i = 0; i < pairs; ++i) {
      float angle = float(key.position) * inv_freq[i];
      out[i] = std::cos(angle) * scale;
      out[pairs + i] = std::sin(angle) * scale;
    }
    out += 2 * pairs;
  }
  keys_ = wanted_;
  return rows_.data();
}

std::unique_ptr<Rope> prepare_rope(RopeTable table) {
  return std::make_unique<CpuRope>(std::move(table));
}

}  // namespace mlxcel::cpu
