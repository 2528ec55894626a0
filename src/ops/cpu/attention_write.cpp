// The first phase of attention: queries, keys and values of the step's rows.
#include "core/half.h"
#include "ops/cpu/attention_call.h"

#include <cstring>

namespace mlxcel::cpu {

void AttentionCall::store_key(
    const AttentionScratch& scratch,
    const Segment& segment,
    int64_t position,
    int head,
    const float* key) {
  std::byte* keys =
      cache_.block(segment.blocks[size_t(position / kKvBlockSize)]) +
      layout_.k_head(head);
  int column = int(position % kKvBlockSize);
  if (type_ == DType::f32) {
    auto* to = reinterpret_cast<float*>(keys) + column;
    for (int i = 0; i < args_.head_dim; ++i) {
      to[i * kKvBlockSize] = key[i];
    }
    return;
  }
  kernels_.narrow(key, 1, type_, scratch.narrow, args_.head_dim);
  if (args_.head_dim % 2 != 0) {
    scratch.narrow[args_.head_dim] = 0;
  }
  auto* to = reinterpret_cast<uint32_t*>(keys) + column;
  for (int i = 0; i < args_.head_dim; i += 2) {
    to[i / 2 * kKvBlockSize] = load_unaligned<uint32_t>(scratch.narrow + i);
  }
}

void AttentionCall::store_value(
    const AttentionScratch& scratch,
    const Segment& segment,
    int64_t position,
    int head,
    const float* value) {
  std::byte* values =
      cache_.block(segment.blocks[size_t(position / kKvBlockSize)]) +
      layout_.v_head(head);
  int row = int(position % kKvBlockSize);
  if (type_ == DType::f32) {
    std::memcpy(
        reinterpret_cast<float*>(values) + row * v_pitch_,
        value,
        size_t(args_.head_dim) * sizeof(float));
    return;
  }
  kernels_.narrow(value, 1, type_, scratch.narrow, args_.head_dim);
  auto* to = reinterpret_cast<uint32_t*>(values) + row / 2 * v_pitch_;
  if (row % 2 != 0) {
    for (int i = 0; i < args_.head_dim; ++i) {
      to[i] = (to[i] & 0xffffu) | uint32_t(scratch.narrow[i]) << 16;
    }
    return;
  }
  // The pair's other half may hold a former sequence's infinity, and a weight
  // of zero would make it NaN.
  for (int i = 0; i < args_.head_dim; ++i) {
    to[i] = scratch.narrow[i];
  }
}

// Normalizes and turns the heads of a row in place.
void AttentionCall::prepare_heads(
    float* row, int step_row, int heads, const Norm* norm) const {
  int head_dim = args_.head_dim;
  if (norm) {
    const auto& weights = static_cast<const CpuNorm&>(*norm);
    int parts = norm->size() == head_dim ? heads : 1;
    for (int part = 0; part < parts; ++part) {
      weights.apply(row + part * head_dim, row + part * head_dim);
    }
  }
  if (rope_) {
    int half = rope_->dims() / 2;
    const float* table = rope_rows_ + size_t(step_row) * 2 * size_t(half);
    for (int head = 0; head < heads; ++head) {
      kernels_.rotate(
          row + head * head_dim,
          table,
          table + half,
          half,
          rope_->interleaved());
    }
  }
}

void AttentionCall::store_queries(
    const AttentionScratch& scratch, int step_row, bool prompt) {
  int head_dim = args_.head_dim;
  // The heads of a group lie side by side, except those of odd size, which are
  // padded.
  int run = head_dim % 2 == 0 ? group_ : 1;
  int count = run * head_dim;
  for (int head = 0; head < args_.num_heads; head += run) {
    size_t at = query_index(head / group_, step_row) +
                size_t(head % group_) * size_t(q_pitch_);
    const float* from = scratch.row + head * head_dim;
    if (dots_ && prompt) {
      kernels_.narrow(from, q_scale_, DType::bf16, queries_bf16_ + at, count);
      if (head_dim < q_pitch_) {
        queries_bf16_[at + size_t(head_dim)] = 0;
      }
    } else {
      kernels_.scale(queries_ + at, from, q_scale_, count);
      if (head_dim < q_pitch_) {
        queries_[at + size_t(head_dim)] = 0;
      }
    }
  }
}

void AttentionCall::prepare(
    const AttentionScratch& scratch, const WriteTask& task) {
  const Segment& segment = *task.segment;
  int head_dim = args_.head_dim;
  int64_t q_width = int64_t(args_.num_heads) * head_dim;
  int64_t k_width = int64_t(args_.num_kv_heads) * head_dim;
  for (int row = task.row; row < task.row + task.count; ++row) {
    int step_row = segment.first_row + row;
    int64_t position = segment.position + row;
    const float* q = qkv_ + step_row * (q_width + 2 * k_width);
    const float* k = q + q_width;
    const float* v = k + k_width;

    std::memcpy(scratch.row, q, size_t(q_width) * sizeof(float));
    prepare_heads(scratch.row, step_row, args_.num_heads, args_.q_norm);
    store_queries(scratch, step_row, segment.prompt);

    std::memcpy(scratch.row, k, size_t(k_width) * sizeof(float));
    prepare_heads(scratch.row, step_row, args_.num_kv_heads, args_.k_norm);
    for (int head = 0; head < args_.num_kv_heads; ++head) {
      store_key(
          scratch, segment, position, head, scratch.row + head * head_dim);
      store_value(scratch, segment, position, head, v + head * head_dim);
    }
  }
}

}  // namespace mlxcel::cpu
