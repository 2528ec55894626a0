// The second phase of attention: query rows against the blocks of the cache.
#include "ops/cpu/attention_call.h"
#include "ops/cpu/prefetch.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace mlxcel::cpu {

// A block's matrices as the products read them.
struct AttentionCall::BlockOperands {
  const void* keys;
  const void* values;
  DType type;
  int columns;     // of the keys: positions up to the last that a row sees
  int value_rows;  // and rows of the values
};

// Positions of a block up to the last that a row of the task sees.
int AttentionCall::used_positions(const AttendTask& task, int64_t index) const {
  int64_t last = task.segment->position + task.row + task.count - 1;
  return int(std::min<int64_t>(kKvBlockSize, last + 1 - index * kKvBlockSize));
}

// A generated row reads each strip of a block once, some KiB in one place, and
// computes little on it: asked for when the row gets there, half of its time
// goes by until the first lines arrive.
void AttentionCall::fetch_keys(const AttendTask& task, int64_t index) const {
  const std::byte* keys = cache_.block(task.segment->blocks[size_t(index)]) +
                          layout_.k_head(task.kv_head);
  int columns = round_up(used_positions(task, index), 16);
  int rows = type_ == DType::f32 ? args_.head_dim : q_pitch_ / 2;
  constexpr size_t kRowBytes = kKvBlockSize * sizeof(float);
  for (int row = 0; row < rows; ++row, keys += kRowBytes) {
    prefetch<Cache::second>(keys, size_t(columns) * sizeof(float));
  }
}

void AttentionCall::fetch_values(const AttendTask& task, int64_t index) const {
  if (values_in_keys_) {
    return;
  }
  int used = used_positions(task, index);
  int rows = type_ == DType::f32 ? used : round_up(used, 2) / 2;
  prefetch<Cache::second>(
      cache_.block(task.segment->blocks[size_t(index)]) +
          layout_.v_head(task.kv_head),
      size_t(rows) * size_t(v_pitch_) * sizeof(float));
}

// Prompt rows multiply bf16 by bf16 where there are dots, else f32 by f32, so
// blocks of other types are converted once a tile; generated rows read the
// cache as it is.
AttentionCall::BlockOperands AttentionCall::block_operands(
    const AttentionScratch& scratch,
    const AttendTask& task,
    int64_t index) const {
  const Segment& segment = *task.segment;
  const std::byte* base = cache_.block(segment.blocks[size_t(index)]);
  int used = used_positions(task, index);
  BlockOperands block = {
      .keys = base + layout_.k_head(task.kv_head),
      .values = base + layout_.v_head(task.kv_head),
      .type = type_,
      .columns = round_up(used, 16),
      .value_rows = type_ == DType::f32 ? used : round_up(used, 2),
  };
  bool narrow = segment.prompt && type_ != DType::f32;
  if (narrow && !dots_) {
    kernels_.widen(block.keys, type_, kKvBlockSize, q_pitch_, scratch.keys);
    if (!values_in_keys_) {
      kernels_.widen(
          block.values, type_, v_pitch_, block.value_rows, scratch.values);
    }
    block.type = DType::f32;
  } else if (narrow && type_ == DType::f16) {
    kernels_.f16_to_bf16(
        static_cast<const uint16_t*>(block.keys),
        reinterpret_cast<uint16_t*>(scratch.keys),
        int64_t(q_pitch_) * kKvBlockSize);
    if (!values_in_keys_) {
      kernels_.f16_to_bf16(
          static_cast<const uint16_t*>(block.values),
          reinterpret_cast<uint16_t*>(scratch.values),
          int64_t(block.value_rows) * v_pitch_);
    }
    block.type = DType::bf16;
  } else {
    narrow = false;
  }
  if (narrow) {
    block.keys = scratch.keys;
    block.values = scratch.values;
  }
  if (values_in_keys_) {
    turn_values(block, used, scratch.values);
    block.values = scratch.values;
  }
  return block;
}

// Positions past the last used one may hold anything, and a weight of zero
// would make infinity NaN, so they become zero.
void AttentionCall::turn_values(
    const BlockOperands& block, int used, float* values) const {
  int first = args_.head_dim - v_dim_;
  if (block.type == DType::f32) {
    kernels_.turn_f32(
        static_cast<const float*>(block.keys) + first * kKvBlockSize,
        v_dim_,
        used,
        values,
        v_pitch_);
    std::fill(
        values + used * v_pitch_, values + block.value_rows * v_pitch_, 0.f);
    return;
  }
  auto* pairs = reinterpret_cast<uint32_t*>(values);
  kernels_.turn_pairs(
      static_cast<const uint32_t*>(block.keys) + first / 2 * kKvBlockSize,
      round_up(v_dim_, 2),
      block.value_rows,
      pairs,
      v_pitch_);
  if (used < block.value_rows) {
    for (int i = 0; i < v_pitch_; ++i) {
      pairs[used / 2 * v_pitch_ + i] &= 0xffffu;
    }
  }
}

void AttentionCall::multiply_keys(
    const AttentionScratch& scratch,
    const AttendTask& task,
    const BlockOperands& block) const {
  int m = task.count * group_;
  size_t query = query_index(task.kv_head, task.segment->first_row + task.row);
  if (dots(*task.segment)) {
    kernels_.product_bf16(
        queries_bf16_ + query,
        q_pitch_,
        static_cast<const uint16_t*>(block.keys),
        kKvBlockSize,
        block.columns,
        q_pitch_,
        m,
        scratch.scores,
        kKvBlockSize,
        nullptr);
    return;
  }
  kernels_.product(
      queries_ + query,
      q_pitch_,
      block.keys,
      block.type,
      kKvBlockSize,
      block.columns,
      block.type == DType::f32 ? args_.head_dim : q_pitch_,
      m,
      scratch.scores,
      kKvBlockSize,
      nullptr);
}

VisibleRange AttentionCall::in_sight(
    int head,
    int64_t position,
    int64_t start,
    int64_t begin,
    int64_t end) const {
  const SparseBlocks& sparse = args_.sparse;
  if (sparse.size > 0) {
    // One or two of the heads' blocks: what is seen of them is one run.
    static_assert(kKvBlockSize == 64);
    auto hidden = [&](int64_t key) {
      return !sparse.sees(head, position, start + key);
    };
    while (begin < end && hidden(begin)) {
      begin = std::min(end, (begin / sparse.size + 1) * sparse.size);
    }
    while (begin < end && hidden(end - 1)) {
      end = std::max(begin, (end - 1) / sparse.size * sparse.size);
    }
  }
  return {uint8_t(begin), uint8_t(end)};
}

void AttentionCall::weigh(
    const AttentionScratch& scratch,
    const AttendTask& task,
    int64_t index,
    SoftmaxState* states) const {
  int64_t start = index * kKvBlockSize;
  for (int row = 0, i = 0; row < task.count; ++row) {
    int64_t position = task.segment->position + task.row + row;
    int64_t begin = std::clamp<int64_t>(
        args_.window.first(position) - start, 0, kKvBlockSize);
    int64_t end = std::clamp<int64_t>(position + 1 - start, 0, kKvBlockSize);
    for (int head = 0; head < group_; ++head, ++i) {
      scratch.visible[i] =
          in_sight(query_head(task.kv_head, head), position, start, begin, end);
    }
  }
  if (!args_.alibi_slopes.empty()) {
    add_slopes(scratch, task, start);
  }
  kernels_.softmax(
      {.m = task.count * group_,
       .scores = scratch.scores,
       .weights_bf16 = dots(*task.segment) ? scratch.weights_bf16 : nullptr,
       .visible = scratch.visible,
       .cap = args_.softcap,
       .states = states,
       .factors = scratch.factors});
}

// Scores grow with the key's position, by the distance from the row's own.
void AttentionCall::add_slopes(
    const AttentionScratch& scratch,
    const AttendTask& task,
    int64_t start) const {
  for (int i = 0; i < task.count * group_; ++i) {
    int head = query_head(task.kv_head, i % group_);
    float slope = args_.alibi_slopes[size_t(head)] * kLog2e;
    int64_t position = task.segment->position + task.row + i / group_;
    float* scores = scratch.scores + i * kKvBlockSize;
    for (int column = 0; column < kKvBlockSize; ++column) {
      scores[column] += slope * float(start + column - position);
    }
  }
}

void AttentionCall::apply_gate(float* out, int step_row, int head) const {
  int64_t gate = qkv_.cols() - int64_t(args_.num_heads - head) * args_.head_dim;
  kernels_.multiply_sigmoid(
      out, data(qkv_) + step_row * qkv_.cols() + gate, args_.head_dim);
}

void AttentionCall::multiply_values(
    const AttentionScratch& scratch,
    const AttendTask& task,
    const BlockOperands& block,
    float* sums,
    const float* factors) const {
  int m = task.count * group_;
  if (dots(*task.segment)) {
    kernels_.product_bf16(
        scratch.weights_bf16,
        kKvBlockSize,
        static_cast<const uint16_t*>(block.values),
        v_pitch_,
        v_pitch_,
        block.value_rows,
        m,
        sums,
        v_pitch_,
        factors);
    return;
  }
  kernels_.product(
      scratch.scores,
      kKvBlockSize,
      block.values,
      block.type,
      v_pitch_,
      v_pitch_,
      block.value_rows,
      m,
      sums,
      v_pitch_,
      factors);
}

void AttentionCall::attend(
    const AttentionScratch& scratch,
    const AttendTask& task,
    const AttendTask* next) {
  bool prompt = task.segment->prompt;
  float* sums = scratch.sums;
  SoftmaxState* states = scratch.states;
  if (!prompt) {
    size_t partial = size_t(task.partial + task.range) * size_t(group_);
    sums = partials_ + partial * size_t(v_pitch_);
    states = partial_states_ + partial;
  }
  for (int i = 0; i < task.count * group_; ++i) {
    int head = query_head(task.kv_head, i % group_);
    // A prompt row starts with its sink; a generated one adds it at the end.
    states[i] = prompt && !args_.sinks.empty()
                    ? SoftmaxState{args_.sinks[size_t(head)] * kLog2e, 1}
                    : SoftmaxState{kMinusInfinity, 0};
  }
  for (int64_t index = task.begin_block; index < task.end_block; ++index) {
    if (!prompt) {
      fetch_values(task, index);
    }
    BlockOperands block = block_operands(scratch, task, index);
    multiply_keys(scratch, task, block);
    if (index + 1 < task.end_block) {
      if (!prompt) {
        fetch_keys(task, index + 1);
      }
    } else if (next != nullptr && !next->segment->prompt) {
      fetch_keys(*next, next->begin_block);
    }
    weigh(scratch, task, index, states);
    // The first block overwrites the sums.
    const float* factors = index > task.begin_block ? scratch.factors : nullptr;
    multiply_values(scratch, task, block, sums, factors);
  }
  if (prompt) {
    finish_prompt(scratch, task);
  } else if (
      done_[size_t(task.counter)].fetch_add(1, std::memory_order_acq_rel) ==
      task.num_ranges - 1) {
    finish_generated(task);
  }
}

void AttentionCall::finish_prompt(
    const AttentionScratch& scratch, const AttendTask& task) const {
  int step_row = task.segment->first_row + task.row;
  for (int i = 0; i < task.count * group_; ++i) {
    int head = query_head(task.kv_head, i % group_);
    int64_t row = step_row + i / group_;
    float* to = out_ + (row * args_.num_heads + head) * v_dim_;
    kernels_.scale(
        to, scratch.sums + i * v_pitch_, 1 / scratch.states[i].sum, v_dim_);
    if (args_.gated) {
      apply_gate(to, int(row), head);
    }
  }
}

// Combines the ranges of one row in order, whichever thread came last.
void AttentionCall::finish_generated(const AttendTask& task) const {
  int step_row = task.segment->first_row + task.row;
  for (int i = 0; i < group_; ++i) {
    int head = query_head(task.kv_head, i);
    float* to = out_ + (int64_t(step_row) * args_.num_heads + head) * v_dim_;
    auto at = [&](int range) {
      return size_t(task.partial + range) * size_t(group_) + size_t(i);
    };
    float sink = args_.sinks.empty() ? kMinusInfinity
                                     : args_.sinks[size_t(head)] * kLog2e;
    float max = sink;
    for (int range = 0; range < task.num_ranges; ++range) {
      max = std::max(max, partial_states_[at(range)].max);
    }
    float sum = args_.sinks.empty() ? 0 : std::exp2(sink - max);
    std::memset(to, 0, size_t(v_dim_) * sizeof(float));
    for (int range = 0; range < task.num_ranges; ++range) {
      const SoftmaxState& state = partial_states_[at(range)];
      float factor = std::exp2(state.max - max);
      sum += state.sum * factor;
      kernels_.add_scaled(
          to, partials_ + at(range) * size_t(v_pitch_), factor, v_dim_);
    }
    kernels_.scale(to, to, 1 / sum, v_dim_);
    if (args_.gated) {
      apply_gate(to, step_row, head);
    }
  }
}

}  // namespace mlxcel::cpu
