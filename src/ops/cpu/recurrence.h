// The recurrent mixers of this backend. Heads and sequences are split over the
// threads; a head takes its tokens in order, so that its state stays in the
// first cache. Results do not depend on the number of threads.
#pragma once

#include "ops/cpu/context.h"
#include "ops/cpu/kernels/recurrence_kernels.h"
#include "ops/cpu/kv_cache.h"

#include <functional>
#include <initializer_list>

namespace mlxcel::cpu {

struct CpuConstants : Constants {
  explicit CpuConstants(std::vector<float> numbers)
      : Constants(int64_t(numbers.size())), values(std::move(numbers)) {}
  std::vector<float> values;
};

inline const float* data(const Constants* constants) {
  return constants == nullptr
             ? nullptr
             : static_cast<const CpuConstants*>(constants)->values.data();
}

// Tasks that may run side by side; one phase ends before the next begins.
struct Phase {
  int64_t tasks = 0;
  std::function<void(int64_t task)> run;
};

// The call of one op: what the parts of this backend's recurrences share.
struct RecurrenceCall {
  Context& context;
  const Step& step;
  CpuKvCache& cache;
  int layer;
  const RecurrenceKernels& kernels;
  Tensor out;

  float* state(const Segment& segment, int64_t first) const {
    return cache.state(segment.state, layer) + first;
  }
  RowsIn rows(const Tensor& tensor, const Segment& segment, int64_t col) const {
    return {
        data(tensor) + segment.first_row * tensor.cols() + col, tensor.cols()};
  }
  // Runs the phases on all threads, or on this one where `work` values do not
  // pay for a fork.
  void run(std::initializer_list<Phase> phases, int64_t work) const;
};

// Columns [column, column + count) of the input are channels [channel, ...).
struct ChannelRun {
  int64_t channel = 0, count = 0, column = 0;
};

// The convolution of all rows, to `out` [rows, channels]; updates the states.
Phase convolution_phase(
    const RecurrenceCall& call,
    const Convolution& convolution,
    const Tensor& x,
    std::vector<ChannelRun> runs,
    bool silu,
    const Tensor& out);

// The norm and the gate on the rows of call.out. `gate` gives a row's gate for
// the features from `first` on.
Phase gate_phase(
    const RecurrenceCall& call,
    const GatedNorm& norm,
    float scale,
    std::function<const float*(int64_t row, int64_t first)> gate);

void run_op(const RecurrenceCall& call, const ShortConvolution& op);
void run_op(const RecurrenceCall& call, const SelectiveScan& op);
void run_op(const RecurrenceCall& call, const StateSpaceDual& op);
void run_op(const RecurrenceCall& call, const GatedDelta& op);
void run_op(const RecurrenceCall& call, const RealGatedRecurrence& op);
void run_op(const RecurrenceCall& call, const LightningAttention& op);
void run_op(const RecurrenceCall& call, const LightningBlocks& op);
void run_op(const RecurrenceCall& call, const TokenShift& op);
void run_op(const RecurrenceCall& call, const ChannelBlend& op);
void run_op(const RecurrenceCall& call, const Rwkv7& op);

Tensor recurrence(
    Context& context,
    const Step& step,
    const Recurrence& op,
    KvCache& cache,
    int layer);

}  // namespace mlxcel::cpu
