// The first phase of attention: queries, keys and values of the step's rows.
#include "core/half.h"
#include "ops/cpu/attention_call.h"
#include "ops/cpu/prefetch.h"

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

namespace {

// Each of the heads by itself, or the row as a whole.
void normalize_heads(float* row, int heads, int head_dim, const Norm* norm) {
  const auto& weights = static_cast<const CpuNorm&>(*norm);
  int parts = norm->size() == head_dim ? heads : 1;
  for (int part = 0; part < parts; ++part) {
    weights.apply(row + part * head_dim, row + part * head_dim);
  }
}

}  // namespace

void AttentionCall::limit(float* row, int64_t count) const {
  if (args_.clip > 0) {
    for (int64_t i = 0; i < count; ++i) {
      row[i] = std::clamp(row[i], -args_.clip, args_.clip);
    }
  }
}

// Normalizes, limits and turns the heads of a row in place.
void AttentionCall::prepare_heads(
    float* row, int step_row, int heads, const Norm* norm) const {
  int head_dim = args_.head_dim;
  if (norm && !args_.norm_after_rope) {
    normalize_heads(row, heads, head_dim, norm);
  }
  limit(row, int64_t(heads) * head_dim);
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
  if (norm && args_.norm_after_rope) {
    normalize_heads(row, heads, head_dim, norm);
  }
}

void AttentionCall::store_queries(
    const AttentionScratch& scratch, int step_row, float factor, bool prompt) {
  int head_dim = args_.head_dim;
  // The heads of a group lie side by side, except those of odd size, which are
  // padded, and those that the projection does not have in that order.
  bool in_order = args_.head_order == HeadOrder::grouped;
  int run = head_dim % 2 == 0 && in_order ? group_ : 1;
  int count = run * head_dim;
  for (int i = 0; i < args_.num_heads; i += run) {
    size_t at = query_index(i / group_, step_row) +
                size_t(i % group_) * size_t(q_pitch_);
    const float* from =
        scratch.row + query_head(i / group_, i % group_) * head_dim;
    if (dots_ && prompt) {
      kernels_.narrow(from, factor, DType::bf16, queries_bf16_ + at, count);
      if (head_dim < q_pitch_) {
        queries_bf16_[at + size_t(head_dim)] = 0;
      }
    } else {
      kernels_.scale(queries_ + at, from, factor, count);
      if (head_dim < q_pitch_) {
        queries_[at + size_t(head_dim)] = 0;
      }
    }
  }
}

void AttentionCall::store_keys_and_values(
    const AttentionScratch& scratch,
    const Segment& segment,
    int step_row,
    int64_t position) {
  int head_dim = args_.head_dim;
  int64_t k_width = int64_t(args_.num_kv_heads) * head_dim;
  const Tensor& source = shared_ ? *shared_ : qkv_;
  const float* k = data(source) + step_row * source.cols() +
                   int64_t(args_.num_heads) * head_dim;
  bool apart = args_.key_values == KeyValues::projected && !values_in_keys_;
  const float* v = apart ? k + k_width : k;

  if (args_.v_norm || args_.clip > 0) {
    std::memcpy(scratch.row, v, size_t(k_width) * sizeof(float));
    if (args_.v_norm) {
      normalize_heads(scratch.row, args_.num_kv_heads, head_dim, args_.v_norm);
    }
    limit(scratch.row, k_width);
    v = scratch.row;
  }
  for (int head = 0; head < args_.num_kv_heads && !values_in_keys_; ++head) {
    store_value(scratch, segment, position, head, v + head * head_dim);
  }
  std::memcpy(scratch.row, k, size_t(k_width) * sizeof(float));
  prepare_heads(scratch.row, step_row, args_.num_kv_heads, args_.k_norm);
  for (int head = 0; head < args_.num_kv_heads; ++head) {
    store_key(scratch, segment, position, head, scratch.row + head * head_dim);
  }
}

// Asks for the lines that a position's keys and values go to: one for each
// stored row of a head's keys.
void AttentionCall::fetch_place(
    const Segment& segment, int64_t position) const {
  constexpr size_t kRowBytes = kKvBlockSize * sizeof(float);
  const std::byte* block =
      cache_.block(segment.blocks[size_t(position / kKvBlockSize)]);
  auto column = size_t(position % kKvBlockSize);
  bool wide = type_ == DType::f32;
  size_t key_rows = size_t(wide ? args_.head_dim : q_pitch_ / 2);
  for (int head = 0; head < args_.num_kv_heads; ++head) {
    const std::byte* keys =
        block + layout_.k_head(head) + column * sizeof(float);
    for (size_t row = 0; row < key_rows; ++row, keys += kRowBytes) {
      prefetch<Cache::second, true>(keys, 1);
    }
    if (!values_in_keys_) {
      size_t bytes = size_t(v_pitch_) * sizeof(float);
      const std::byte* values =
          block + layout_.v_head(head) + (wide ? column : column / 2) * bytes;
      prefetch<Cache::second, true>(values, bytes);
    }
  }
}

void AttentionCall::prepare(
    const AttentionScratch& scratch, const WriteTask& task) {
  const Segment& segment = *task.segment;
  bool stores = args_.key_values != KeyValues::cached;
  int64_t q_width = int64_t(args_.num_heads) * args_.head_dim;
  for (int row = task.row; row < task.row + task.count; ++row) {
    int step_row = segment.first_row + row;
    int64_t position = segment.position + row;
    if (stores && !segment.prompt) {
      fetch_place(segment, position);
    }
    const float* q = data(qkv_) + step_row * qkv_.cols();
    std::memcpy(scratch.row, q, size_t(q_width) * sizeof(float));
    prepare_heads(scratch.row, step_row, args_.num_heads, args_.q_norm);
    store_queries(
        scratch,
        step_row,
        q_scale_ * args_.query_scaling.at(position),
        segment.prompt);
    if (stores) {
      store_keys_and_values(scratch, segment, step_row, position);
    }
  }
}

}  // namespace mlxcel::cpu
