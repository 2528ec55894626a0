// Kernels of the recurrent mixers, one set an instruction set. A head's state
// is a matrix [keys][values] whose values lie side by side, so that no sum
// crosses a vector. Every kernel takes the tokens of a segment in order.
#pragma once

#include "core/cpu_features.h"

#include <cstdint>

namespace mlxcel::cpu {

// Rows of a matrix, `stride` values apart.
struct RowsIn {
  const float* first = nullptr;
  int64_t stride = 0;
  const float* at(int64_t row) const {
    return first + row * stride;
  }
};

// Some columns of one head's state, through `rows` tokens:
//   plain:  S = decay S + k v^T
//   delta:  S = decay S;  S = S + k (beta (v - S^T k))^T
//   lerp:   S = decay S + b (S^T a)^T + k v^T
// and y = S^T q. `decay` has one number a row or, by key, as many as keys.
struct StateUpdate {
  float* state = nullptr;
  int64_t pitch = 0;  // values from key to key
  int64_t keys = 0, columns = 0, rows = 0;
  bool decay_by_key = false;
  RowsIn decay, q, k, v;
  RowsIn beta;  // delta: one a row
  RowsIn a, b;  // lerp
  float* y = nullptr;
  int64_t y_stride = 0;
};

// Mamba's scan over some channels; all pointers at the first of them.
struct ChannelScan {
  float* state = nullptr;  // [states][pitch]
  int64_t pitch = 0, states = 0, columns = 0, rows = 0;
  const float* a = nullptr;  // like the state
  const float* d = nullptr;
  RowsIn x, dt, b, c, z;
  float* y = nullptr;
  int64_t y_stride = 0;
};

// RG-LRU over one block of channels.
struct GatedBlock {
  float* state = nullptr;
  int64_t width = 0, rows = 0;
  bool reset = false;  // the first row is position 0
  const float *input_weight = nullptr, *input_bias = nullptr;
  const float *recurrent_weight = nullptr, *recurrent_bias = nullptr;
  const float* decay = nullptr;
  RowsIn u, gate;
  float* y = nullptr;
  int64_t y_stride = 0;
};

struct RecurrenceKernels {
  void (*plain)(const StateUpdate& update);
  void (*delta)(const StateUpdate& update);
  void (*lerp)(const StateUpdate& update);
  void (*channel_scan)(const ChannelScan& scan);
  void (*gated_block)(const GatedBlock& block);
  // y = f(bias + sum_j taps[j * pitch + c] * rows[j][c]); f: silu or nothing.
  void (*convolve)(
      const float* const* rows,
      const float* taps,
      int64_t pitch,
      const float* bias,
      int count,
      int64_t channels,
      bool silu,
      float* y);
  void (*silu)(const float* x, float* y, int64_t n);
  // y = y * f(scale * z), f: silu or sigmoid
  void (*gate)(float* y, const float* z, float scale, bool sigmoid, int64_t n);
};

const RecurrenceKernels& recurrence_kernels(Isa isa);

extern const RecurrenceKernels kRecurrencePortable, kRecurrenceAvx2,
    kRecurrenceAvx512;

}  // namespace mlxcel::cpu
