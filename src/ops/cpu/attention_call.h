// One attention call of the CPU backend: what its phases share. A call is one
// fork-join: rows are normalized, rotated and written to the cache, then every
// query head reduces over its blocks.
//
// Prompt rows go through tiles of query rows against blocks of 64 keys, each
// row with its own online softmax over the blocks in order. Generated rows
// reduce over ranges of blocks fixed by absolute position, and the ranges are
// combined in order. So neither depends on how rows were cut into steps, on the
// batch, or on the number of threads.
//
// Values may also stand in the keys: then a block's values are turned from its
// keys where it is read, once for all query heads.
#pragma once

#include "ops/cpu/context.h"
#include "ops/cpu/kernels/attention_kernels.h"
#include "ops/cpu/kv_cache.h"
#include "ops/cpu/read_ahead.h"
#include "ops/cpu/rope.h"

#include <algorithm>
#include <atomic>
#include <limits>

namespace mlxcel::cpu {

constexpr float kLog2e = 1.44269504f;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

constexpr int round_up(int value, int unit) {
  return (value + unit - 1) / unit * unit;
}

// Rows of one segment that one thread prepares.
struct WriteTask {
  const Segment* segment;
  int row, count;  // within the segment
};

// Query rows of one key head.
struct AttendTask {
  const Segment* segment;
  int kv_head;
  int row, count;  // within the segment; generated: one row
  int64_t begin_block, end_block;
  int range = 0, num_ranges = 0;  // generated rows
  int partial = 0;                // index of the first range's partial result
  int counter = 0;
};

// Places in one buffer, each at a cache line.
class ScratchLayout {
 public:
  template <typename T>
  size_t add(size_t count) {
    size_t start = bytes_;
    bytes_ += (count * sizeof(T) + 63) / 64 * 64;
    return start;
  }
  size_t bytes() const {
    return bytes_;
  }

 private:
  size_t bytes_ = 0;
};

// Working memory of one thread.
struct AttentionScratch {
  float* scores;           // [tile][64]
  uint16_t* weights_bf16;  // [tile][64]
  float* sums;             // [tile][v_pitch]
  SoftmaxState* states;    // [tile]
  float* factors;          // [tile]
  VisibleRange* visible;   // [tile]
  float* keys;             // a block's keys, converted
  float* values;           // and values
  float* row;              // one row of queries or keys
  uint16_t* narrow;        // one head in the cache's type
};

class AttentionCall {
 public:
  // value_dim > 0: the values are the last so many features of the keys, and
  // neither qkv nor the cache holds others; head_dim - value_dim is even.
  AttentionCall(
      Context& context,
      const Step& step,
      const Tensor& qkv,
      const AttentionArgs& args,
      CpuKvCache& cache,
      int layer,
      const Tensor* shared,
      int value_dim = 0);
  // Returns [rows, heads * features of a value].
  Tensor run();

 private:
  // What there is to do (attention_plan.cpp). Returns how many times a head's
  // row meets a block, one of each query group.
  int64_t plan();
  void plan_writes(const Segment& segment);
  void plan_tiles(const Segment& segment);
  int64_t plan_generated();
  // Lists what a thread reads in the call that follows.
  void read_ahead(int thread) const;
  void add_reads(
      const AttendTask& task,
      int64_t index,
      const KvLayerLayout& layout,
      FetchList& list) const;
  void attend_all(const AttentionScratch& scratch, int thread);
  void make_scratch();
  AttentionScratch scratch(int thread) const;

  // The first phase (attention_write.cpp).
  void prepare(const AttentionScratch& scratch, const WriteTask& task);
  void fetch_place(const Segment& segment, int64_t position) const;
  void prepare_heads(
      float* row, int step_row, int heads, const Norm* norm) const;
  void limit(float* row, int64_t count) const;
  void store_queries(
      const AttentionScratch& scratch, int step_row, float factor, bool prompt);
  void store_keys_and_values(
      const AttentionScratch& scratch,
      const Segment& segment,
      int step_row,
      int64_t position);
  void store_key(
      const AttentionScratch& scratch,
      const Segment& segment,
      int64_t position,
      int head,
      const float* key);
  void store_value(
      const AttentionScratch& scratch,
      const Segment& segment,
      int64_t position,
      int head,
      const float* value);

  // A thread's part of the generated rows' tasks: dealt out beforehand, so that
  // it is known early who will read what.
  struct alignas(64) Share {
    std::atomic<int> next{0};
    int end = 0;
  };

  // The second phase (attention_attend.cpp).
  struct BlockOperands;
  // `next`: the task that this thread goes on with, if that is known.
  void attend(
      const AttentionScratch& scratch,
      const AttendTask& task,
      const AttendTask* next);
  int used_positions(const AttendTask& task, int64_t index) const;
  // Asks the memory for what is read soon.
  void fetch_keys(const AttendTask& task, int64_t index) const;
  void fetch_values(const AttendTask& task, int64_t index) const;
  BlockOperands block_operands(
      const AttentionScratch& scratch,
      const AttendTask& task,
      int64_t index) const;
  // A block's values as the products read them, from its keys.
  void turn_values(const BlockOperands& block, int used, float* values) const;
  void multiply_keys(
      const AttentionScratch& scratch,
      const AttendTask& task,
      const BlockOperands& block) const;
  void weigh(
      const AttentionScratch& scratch,
      const AttendTask& task,
      int64_t index,
      SoftmaxState* states) const;
  void multiply_values(
      const AttentionScratch& scratch,
      const AttendTask& task,
      const BlockOperands& block,
      float* sums,
      const float* factors) const;
  void finish_prompt(
      const AttentionScratch& scratch, const AttendTask& task) const;
  void finish_generated(const AttendTask& task) const;

  // A row's run of keys of the block from `start` that are in sight of a head.
  VisibleRange in_sight(
      int head,
      int64_t position,
      int64_t start,
      int64_t begin,
      int64_t end) const;
  void add_slopes(
      const AttentionScratch& scratch,
      const AttendTask& task,
      int64_t start) const;
  // Multiplies a head's result by the sigmoid of its columns of the gate.
  void apply_gate(float* out, int step_row, int head) const;

  // Where the queries of a key head start: [row of the step][head of the
  // group].
  size_t query_index(int kv_head, int row) const {
    return (size_t(kv_head) * size_t(step_.num_rows()) + size_t(row)) *
           size_t(group_) * size_t(q_pitch_);
  }
  // The query head that is the i-th of a key head's.
  int query_head(int kv_head, int i) const {
    return args_.head_order == HeadOrder::cycled
               ? kv_head + i * args_.num_kv_heads
               : kv_head * group_ + i;
  }
  bool dots(const Segment& segment) const {
    return dots_ && segment.prompt;
  }

  Context& context_;
  const Step& step_;
  const Tensor& qkv_;
  const Tensor* shared_;
  const AttentionArgs& args_;
  CpuKvCache& cache_;
  const KvLayerLayout& layout_;
  int layer_;
  const AttentionKernels& kernels_;
  Tensor result_;
  float* out_ = nullptr;
  const CpuRope* rope_;
  const float* rope_rows_ = nullptr;

  DType type_;
  bool dots_;  // prompt products in bf16
  int group_;  // query heads a key head
  bool values_in_keys_;
  int v_dim_;    // features of a value
  int q_pitch_;  // head size, even
  int v_pitch_;
  float q_scale_;  // on the queries: the scores come out ready for exp2
  int tile_rows_;  // rows of the step in a prompt tile

  std::vector<WriteTask> writes_;
  std::vector<AttendTask> tiles_;      // of prompt rows
  std::vector<AttendTask> generated_;  // of generated ones, in memory's order
  std::vector<Share> shares_;          // of those, a thread
  const ReadAhead::Call* following_ = nullptr;
  int num_partials_ = 0, num_counters_ = 0;
  std::atomic<int> next_write_{0}, next_tile_{0};

  Tensor buffer_;             // all of the call's working memory
  float* queries_ = nullptr;  // f32, query_index()
  uint16_t* queries_bf16_ = nullptr;
  float* partials_ = nullptr;                 // [partial][group][v_pitch]
  SoftmaxState* partial_states_ = nullptr;    // [partial][group]
  std::unique_ptr<std::atomic<int>[]> done_;  // ranges finished, by counter
  std::byte* thread_buffer_ = nullptr;
  ScratchLayout thread_layout_;
  struct {
    size_t scores, weights_bf16, sums, states, factors, visible, keys, values,
        row, narrow;
  } at_;
};

}  // namespace mlxcel::cpu
