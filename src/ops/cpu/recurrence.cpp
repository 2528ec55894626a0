// What the recurrences have in common, and those without a matrix of state.
#include "ops/cpu/recurrence.h"

#include "ops/cpu/kernels/norm_kernels.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

namespace mlxcel::cpu {

namespace {

// Below this many values touched a fork costs more than it saves.
constexpr int64_t kMinWork = 16384;
// Channels of a task: a few vectors for each tap, and whole cache lines.
constexpr int64_t kChannels = 256;
// Channels of a scan: their states stay in the first cache.
constexpr int64_t kScanChannels = 64;

int64_t parts(int64_t count, int64_t size) {
  return (count + size - 1) / size;
}

struct ConvolutionTask {
  const RecurrenceCall& call;
  const Convolution& convolution;
  bool silu;

  // Channels [channel, channel + count), whose inputs are `x`, into `y`.
  void run(
      const Segment& segment,
      RowsIn x,
      int64_t channel,
      int64_t count,
      float* y,
      int64_t y_stride) const {
    int taps = convolution.taps;
    int64_t pitch = convolution.channels;
    float* state = call.state(segment, convolution.state) + channel;
    const float* bias = data(convolution.bias);
    std::vector<const float*> inputs(size_t(taps), nullptr);
    for (int64_t row = 0; row < segment.num_rows; ++row) {
      for (int j = 0; j < taps; ++j) {
        int64_t from = row - taps + 1 + j;
        inputs[size_t(j)] =
            from >= 0 ? x.at(from) : state + (from + taps - 1) * pitch;
      }
      call.kernels.convolve(
          inputs.data(),
          data(convolution.weight) + channel,
          pitch,
          bias != nullptr ? bias + channel : nullptr,
          taps,
          count,
          silu,
          y + row * y_stride);
    }
    // Row j of the new state is input `rows + j` counted from the old one's
    // first: a later row or one of the segment, so the order is safe.
    for (int64_t j = 0; j < taps - 1; ++j) {
      int64_t from = segment.num_rows - taps + 1 + j;
      const float* source =
          from >= 0 ? x.at(from) : state + (from + taps - 1) * pitch;
      std::memcpy(state + j * pitch, source, size_t(count) * sizeof(float));
    }
  }
};

}  // namespace

void RecurrenceCall::run(
    std::initializer_list<Phase> phases, int64_t work) const {
  if (work < kMinWork || context.pool.size() == 1) {
    for (const Phase& phase : phases) {
      for (int64_t task = 0; task < phase.tasks; ++task) {
        phase.run(task);
      }
    }
    return;
  }
  std::vector<std::atomic<int64_t>> next(phases.size());
  context.pool.run([&](int) {
    auto counter = next.begin();
    for (const Phase& phase : phases) {
      if (counter != next.begin()) {
        context.pool.barrier();
      }
      for (int64_t task; (task = counter->fetch_add(
                              1, std::memory_order_relaxed)) < phase.tasks;) {
        phase.run(task);
      }
      ++counter;
    }
  });
}

Phase convolution_phase(
    const RecurrenceCall& call,
    const Convolution& convolution,
    const Tensor& x,
    std::vector<ChannelRun> runs,
    bool silu,
    const Tensor& out) {
  std::vector<ChannelRun> pieces;
  for (const ChannelRun& run : runs) {
    for (int64_t at = 0; at < run.count; at += kChannels) {
      pieces.push_back(
          {run.channel + at,
           std::min(kChannels, run.count - at),
           run.column + at});
    }
  }
  int64_t count = int64_t(pieces.size());
  int64_t tasks = count * int64_t(call.step.segments.size());
  auto job =
      [&call, &convolution, x, out, silu, count, pieces = std::move(pieces)](
          int64_t task) {
        const Segment& segment = call.step.segments[size_t(task / count)];
        const ChannelRun& piece = pieces[size_t(task % count)];
        ConvolutionTask{call, convolution, silu}.run(
            segment,
            call.rows(x, segment, piece.column),
            piece.channel,
            piece.count,
            data(out) + segment.first_row * out.cols() + piece.channel,
            out.cols());
      };
  return {tasks, std::move(job)};
}

Phase gate_phase(
    const RecurrenceCall& call,
    const GatedNorm& norm,
    float scale,
    std::function<const float*(int64_t row, int64_t first)> gate) {
  int64_t cols = call.out.cols();
  int64_t group = norm.gate == GateForm::silu ? cols : norm.group;
  int64_t groups = cols / group;
  auto job = [&call, &norm, scale, cols, group, groups, gate](int64_t task) {
    int64_t row = task / groups, first = task % groups * group;
    float* y = data(call.out) + row * cols + first;
    const float* z = gate(row, first);
    if (norm.gate == GateForm::silu || norm.gate == GateForm::norm_of_gated) {
      call.kernels.gate(y, z, scale, false, group);
    }
    if (norm.gate == GateForm::silu) {
      return;
    }
    const NormKernels& kernels = norm_kernels(call.context.isa);
    float mean = kernels.sum_of_squares(y, 0, group) / float(group);
    const float* weight = data(norm.weight);
    if (norm.weight->size() != group) {
      weight += first;
    }
    float factor = 1 / std::sqrt(mean + norm.eps);
    kernels.scale(y, y, 0, factor, weight, nullptr, group);
    if (norm.gate != GateForm::norm_of_gated) {
      bool sigmoid = norm.gate == GateForm::sigmoid_of_norm;
      call.kernels.gate(y, z, scale, sigmoid, group);
    }
  };
  return {call.step.num_rows() * groups, std::move(job)};
}

void run_op(const RecurrenceCall& call, const ShortConvolution& op) {
  const Convolution& convolution = op.convolution;
  const Tensor& x = *op.x;
  int64_t channels = convolution.channels, cols = call.out.cols();
  int64_t work = call.step.num_rows() * channels * convolution.taps;
  if (op.form == ConvolutionForm::silu) {
    call.run(
        {convolution_phase(
            call, convolution, x, {{0, channels, op.first}}, true, call.out)},
        work);
    return;
  }
  bool gated = op.form == ConvolutionForm::gated;
  int64_t pieces = parts(channels, kChannels);
  auto job = [&](int64_t task) {
    const Segment& segment = call.step.segments[size_t(task / pieces)];
    int64_t first = task % pieces * kChannels;
    int64_t count = std::min(kChannels, channels - first);
    float* out = data(call.out) + segment.first_row * cols + first;
    if (!gated) {
      if (first == 0) {
        std::memcpy(
            data(call.out) + segment.first_row * cols,
            data(x) + segment.first_row * cols,
            size_t(segment.num_rows) * size_t(cols) * sizeof(float));
      }
      return;
    }
    std::vector<float> product(size_t(segment.num_rows * count));
    RowsIn b = call.rows(x, segment, first);
    for (int64_t row = 0; row < segment.num_rows; ++row) {
      for (int64_t c = 0; c < count; ++c) {
        product[size_t(row * count + c)] =
            b.at(row)[c] * b.at(row)[2 * channels + c];
      }
    }
    ConvolutionTask{call, convolution, false}.run(
        segment, {product.data(), count}, first, count, out, cols);
    for (int64_t row = 0; row < segment.num_rows; ++row) {
      for (int64_t c = 0; c < count; ++c) {
        out[row * cols + c] *= b.at(row)[channels + c];
      }
    }
  };
  Phase first{int64_t(call.step.segments.size()) * pieces, job};
  if (gated) {
    call.run({first}, 2 * work);
    return;
  }
  Phase second{
      int64_t(call.step.segments.size()) * pieces, [&](int64_t task) {
        const Segment& segment = call.step.segments[size_t(task / pieces)];
        int64_t channel = task % pieces * kChannels;
        ConvolutionTask{call, convolution, false}.run(
            segment,
            call.rows(x, segment, op.first + channel),
            channel,
            std::min(kChannels, channels - channel),
            data(call.out) + segment.first_row * cols + op.first + channel,
            cols);
      }};
  call.run({first, second}, work);
}

void run_op(const RecurrenceCall& call, const SelectiveScan& op) {
  const Step& step = call.step;
  Tensor bc = *op.bc;
  Phase norms;
  if (op.b_norm != nullptr) {
    bc = call.context.make(step.num_rows(), 2 * op.state_size);
    norms = {step.num_rows(), [&](int64_t row) {
               const float* from = data(*op.bc) + row * op.bc->cols();
               float* to = data(bc) + row * bc.cols();
               static_cast<const CpuNorm*>(op.b_norm)->apply(from, to);
               static_cast<const CpuNorm*>(op.c_norm)->apply(
                   from + op.state_size, to + op.state_size);
             }};
  }
  int64_t pieces = parts(op.channels, kScanChannels);
  Phase scan{
      int64_t(step.segments.size()) * pieces, [&](int64_t task) {
        const Segment& segment = step.segments[size_t(task / pieces)];
        int64_t first = task % pieces * kScanChannels;
        call.kernels.channel_scan(
            {.state = call.state(segment, op.state) + first,
             .pitch = op.channels,
             .states = op.state_size,
             .columns = std::min(kScanChannels, op.channels - first),
             .rows = segment.num_rows,
             .a = data(op.a) + first,
             .d = data(op.d) + first,
             .x = call.rows(*op.x, segment, first),
             .dt = call.rows(*op.dt, segment, first),
             .b = call.rows(bc, segment, 0),
             .c = call.rows(bc, segment, op.state_size),
             .z = call.rows(*op.z, segment, op.z_first + first),
             .y = data(call.out) + segment.first_row * op.channels + first,
             .y_stride = op.channels});
      }};
  call.run({norms, scan}, step.num_rows() * op.channels * op.state_size);
}

void run_op(const RecurrenceCall& call, const RealGatedRecurrence& op) {
  const Step& step = call.step;
  Tensor u = call.context.make(step.num_rows(), op.width);
  int64_t block = op.width / op.blocks;
  Phase gates{int64_t(step.segments.size()) * op.blocks, [&](int64_t task) {
                const Segment& segment =
                    step.segments[size_t(task / op.blocks)];
                int64_t index = task % op.blocks, first = index * block;
                int64_t weights = index * block * block;
                call.kernels.gated_block(
                    {.state = call.state(segment, op.state) + first,
                     .width = block,
                     .rows = segment.num_rows,
                     .reset = segment.position == 0,
                     .input_weight = data(op.input_weight) + weights,
                     .input_bias = data(op.input_bias) + first,
                     .recurrent_weight = data(op.recurrent_weight) + weights,
                     .recurrent_bias = data(op.recurrent_bias) + first,
                     .decay = data(op.decay) + first,
                     .u = call.rows(u, segment, first),
                     .gate = call.rows(*op.projection, segment, first),
                     .y = data(call.out) + segment.first_row * op.width + first,
                     .y_stride = op.width});
              }};
  call.run(
      {convolution_phase(
           call,
           op.convolution,
           *op.projection,
           {{0, op.width, op.width}},
           false,
           u),
       gates},
      step.num_rows() * op.width * block);
}

void run_op(const RecurrenceCall& call, const TokenShift& op) {
  int64_t cols = op.x->cols();
  for (const Segment& segment : call.step.segments) {
    float* state = call.state(segment, op.state);
    RowsIn x = call.rows(*op.x, segment, 0);
    float* out = data(call.out) + segment.first_row * cols;
    for (int64_t row = 0; row < segment.num_rows; ++row) {
      const float* before = row > 0 ? x.at(row - 1) : state;
      for (int64_t c = 0; c < cols; ++c) {
        out[row * cols + c] = before[c] - x.at(row)[c];
      }
    }
    std::memcpy(
        state, x.at(segment.num_rows - 1), size_t(cols) * sizeof(float));
  }
}

void run_op(const RecurrenceCall& call, const ChannelBlend& op) {
  int64_t cols = op.x->cols();
  const float* mix = data(op.mix);
  for (int64_t row = 0; row < call.step.num_rows(); ++row) {
    const float* x = data(*op.x) + row * cols;
    const float* delta = data(*op.delta) + row * cols;
    float* out = data(call.out) + row * cols;
    for (int64_t c = 0; c < cols; ++c) {
      out[c] = x[c] + mix[c] * delta[c];
    }
  }
}

Tensor recurrence(
    Context& context,
    const Step& step,
    const Recurrence& op,
    KvCache& cache,
    int layer) {
  RecurrenceCall call{
      context,
      step,
      static_cast<CpuKvCache&>(cache),
      layer,
      recurrence_kernels(context.isa),
      context.make(step.num_rows(), output_columns(op))};
  std::visit([&](const auto& which) { run_op(call, which); }, op);
  return call.out;
}

}  // namespace mlxcel::cpu
