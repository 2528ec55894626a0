// Rotary embedding tables of the CPU backend.
#pragma once

#include "ops/step.h"
#include "ops/weights.h"

#include <vector>

namespace mlxcel::cpu {

class CpuRope : public Rope {
 public:
  explicit CpuRope(RopeTable table);

  // Cosines, then sines, of every row of the step: [rows][2][dims / 2], times
  // the table's scale. Computed once a step and kept for its other layers.
  // Angles are position * inv_freq in f32, as the reference models compute.
  const float* rows_of(const Step& step) const;

  bool interleaved() const {
    return table_.interleaved;
  }

 private:
  RopeTable table_;
  struct Key {
    int64_t position;
    bool use_long;
    bool operator==(const Key&) const = default;
  };
  // One step runs at a time, on one thread.
  mutable std::vector<Key> keys_, wanted_;
  mutable std::vector<float> rows_;
};

}  // namespace mlxcel::cpu
