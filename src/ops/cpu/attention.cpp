// Attention of a step's rows, one fork-join: rows are normalized, rotated and
// written to the cache, then every query head reduces over its blocks.
//
// Prompt rows go through tiles of query rows against blocks of 64 keys, each
// row with its own online softmax over the blocks in order. Generated rows
// reduce over ranges of blocks fixed by absolute position, and the ranges are
// combined in order. So neither depends on how rows were cut into steps, on the
// batch, or on the number of threads.
#include "ops/cpu/attention.h"

#include "core/half.h"
#include "ops/cpu/kernels/attention_kernels.h"
#include "ops/cpu/kv_cache.h"
#include "ops/cpu/rope.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

namespace mlxcel::cpu {

namespace {

constexpr float kLog2e = 1.44269504f;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Query rows (times heads of a group) of a prompt tile: enough that converting
// a block of keys costs little beside the products.
constexpr int kTileRows = 64;
// Blocks of a range of generated rows: the unit of work between threads.
constexpr int kRangeBlocks = 2;
// Rows written by one thread stand in whole cache lines of keys: 16 positions.
constexpr int kWriteRows = 16;

// Below this many products (a microsecond of them) a fork and a barrier cost
// more than they save.
constexpr int64_t kMinProducts = 80000;

int round_up(int value, int unit) {
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

class Attention {
 public:
  Attention(
      Context& context,
      const Step& step,
      const Tensor& qkv,
      const AttentionArgs& args,
      CpuKvCache& cache,
      int layer,
      const Tensor& out);
  void run();

 private:
  void plan_segment(const Segment& segment);
  void prepare(int thread, const WriteTask& task);
  void store_key(
      const Segment& segment,
      int64_t position,
      int head,
      const float* key,
      uint16_t* narrow_row);
  void store_value(
      const Segment& segment,
      int64_t position,
      int head,
      const float* value,
      uint16_t* narrow_row);
  void attend(int thread, const AttendTask& task);
  void finish_generated(const AttendTask& task);

  int64_t first_visible(int64_t position) const {
    return args_.window > 0 ? std::max<int64_t>(0, position - args_.window + 1)
                            : 0;
  }
  // Query rows of a key head: [row of the step][head of the group].
  size_t query_index(int kv_head, int row) const {
    return (size_t(kv_head) * size_t(step_.num_rows()) + size_t(row)) *
           size_t(group_) * size_t(q_pitch_);
  }
  const std::byte* block(const Segment& segment, int64_t index) const {
    return cache_.block(segment.blocks[size_t(index)]);
  }

  Context& context_;
  const Step& step_;
  const float* qkv_;
  const AttentionArgs& args_;
  CpuKvCache& cache_;
  const KvLayerLayout& layout_;
  const AttentionKernels& kernels_;
  float* out_;
  const CpuRope* rope_;
  const float* rope_rows_ = nullptr;

  DType type_;
  bool dots_;    // prompt products in bf16
  int group_;    // query heads a key head
  int q_pitch_;  // head size, even
  int v_pitch_;
  float q_scale_;  // on the queries: the scores come out ready for exp2
  int tile_rows_;  // rows of the step in a prompt tile

  std::vector<WriteTask> writes_;
  std::vector<AttendTask> tasks_;
  int num_partials_ = 0, num_counters_ = 0;
  std::atomic<int> next_write_{0}, next_task_{0};

  // Scratch memory, one buffer for the call.
  Tensor scratch_;
  float* queries_ = nullptr;  // f32, query_index()
  uint16_t* queries_bf16_ = nullptr;
  float* partials_ = nullptr;                 // [partial][group][v_pitch]
  SoftmaxState* partial_states_ = nullptr;    // [partial][group]
  std::unique_ptr<std::atomic<int>[]> done_;  // ranges finished, by counter
  std::byte* thread_scratch_ = nullptr;
  size_t thread_bytes_ = 0;
};

Attention::Attention(
    Context& context,
    const Step& step,
    const Tensor& qkv,
    const AttentionArgs& args,
    CpuKvCache& cache,
    int layer,
    const Tensor& out)
    : context_(context),
      step_(step),
      qkv_(data(qkv)),
      args_(args),
      cache_(cache),
      layout_(cache.layer(layer)),
      kernels_(attention_kernels(context.isa)),
      out_(data(out)),
      rope_(static_cast<const CpuRope*>(args.rope)),
      type_(cache.spec().dtype),
      dots_(kernels_.product_bf16 && type_ != DType::f32),
      group_(args.num_heads / args.num_kv_heads),
      q_pitch_(round_up(args.head_dim, 2)),
      v_pitch_(layout_.v_pitch),
      q_scale_(args.softcap > 0 ? args.scale : args.scale * kLog2e),
      tile_rows_(std::max(1, kTileRows / group_)) {}

void Attention::plan_segment(const Segment& segment) {
  for (int row = 0; row < segment.num_rows;) {
    int64_t position = segment.position + row;
    int count = std::min<int>(
        segment.num_rows - row, kWriteRows - int(position % kWriteRows));
    writes_.push_back({&segment, row, count});
    row += count;
  }
  for (int head = 0; head < args_.num_kv_heads; ++head) {
    if (segment.prompt) {
      for (int row = 0; row < segment.num_rows; row += tile_rows_) {
        int count = std::min(tile_rows_, segment.num_rows - row);
        int64_t first = segment.position + row;
        tasks_.push_back(
            {&segment,
             head,
             row,
             count,
             first_visible(first) / kKvBlockSize,
             (first + count - 1) / kKvBlockSize + 1});
      }
      continue;
    }
    for (int row = 0; row < segment.num_rows; ++row) {
      int64_t position = segment.position + row;
      int64_t begin = first_visible(position) / kKvBlockSize;
      int64_t end = position / kKvBlockSize + 1;
      int first_range = int(begin / kRangeBlocks);
      int num_ranges = int((end - 1) / kRangeBlocks) - first_range + 1;
      for (int range = 0; range < num_ranges; ++range) {
        int64_t from = int64_t(first_range + range) * kRangeBlocks;
        tasks_.push_back(
            {&segment,
             head,
             row,
             1,
             std::max(begin, from),
             std::min(end, from + kRangeBlocks),
             range,
             num_ranges,
             num_partials_,
             num_counters_});
      }
      num_partials_ += num_ranges;
      ++num_counters_;
    }
  }
}

void Attention::run() {
  for (const Segment& segment : step_.segments) {
    plan_segment(segment);
  }
  // The longest first, so that the last ones even out the threads.
  auto cost = [](const AttendTask& task) {
    return (task.end_block - task.begin_block) * task.count;
  };
  std::sort(
      tasks_.begin(), tasks_.end(), [&](const auto& left, const auto& right) {
        return cost(left) > cost(right);
      });
  int64_t products = 0;  // multiplications, in whole blocks
  for (const AttendTask& task : tasks_) {
    products += cost(task) * group_ * (q_pitch_ + v_pitch_) * kKvBlockSize;
  }
  if (rope_) {
    rope_rows_ = rope_->rows_of(step_);
  }

  auto reserve = [](size_t& offset, size_t bytes) {
    size_t start = offset;
    offset += (bytes + 63) / 64 * 64;
    return start;
  };
  size_t rows = size_t(step_.num_rows()) * size_t(args_.num_heads);
  size_t bytes = 0;
  size_t queries_at = reserve(bytes, rows * size_t(q_pitch_) * sizeof(float));
  size_t bf16_at =
      reserve(bytes, dots_ ? rows * size_t(q_pitch_) * sizeof(uint16_t) : 0);
  size_t partial_rows = size_t(num_partials_) * size_t(group_);
  size_t partials_at =
      reserve(bytes, partial_rows * size_t(v_pitch_) * sizeof(float));
  size_t states_at = reserve(bytes, partial_rows * sizeof(SoftmaxState));
  // Of a thread: scores, weights in bf16, sums, states, factors, ranges; a
  // block's keys and values converted; one row of queries or keys and one
  // narrowed head.
  size_t tile = size_t(tile_rows_) * size_t(group_);
  size_t width = size_t(std::max(args_.num_heads, 1)) * size_t(args_.head_dim);
  thread_bytes_ = 0;
  reserve(thread_bytes_, tile * kKvBlockSize * sizeof(float));
  reserve(thread_bytes_, tile * kKvBlockSize * sizeof(uint16_t));
  reserve(thread_bytes_, tile * size_t(v_pitch_) * sizeof(float));
  reserve(thread_bytes_, tile * sizeof(SoftmaxState));
  reserve(thread_bytes_, tile * sizeof(float));
  reserve(thread_bytes_, tile * sizeof(VisibleRange));
  reserve(thread_bytes_, size_t(q_pitch_) * kKvBlockSize * sizeof(float));
  reserve(thread_bytes_, size_t(v_pitch_) * kKvBlockSize * sizeof(float));
  reserve(thread_bytes_, width * sizeof(float));
  reserve(thread_bytes_, size_t(v_pitch_) * sizeof(uint16_t));
  int threads = context_.pool.size();
  size_t threads_at = reserve(bytes, thread_bytes_ * size_t(threads));

  scratch_ = context_.make(1, int64_t(bytes / sizeof(float)));
  auto* base = reinterpret_cast<std::byte*>(data(scratch_));
  queries_ = reinterpret_cast<float*>(base + queries_at);
  queries_bf16_ = reinterpret_cast<uint16_t*>(base + bf16_at);
  partials_ = reinterpret_cast<float*>(base + partials_at);
  partial_states_ = reinterpret_cast<SoftmaxState*>(base + states_at);
  thread_scratch_ = base + threads_at;
  done_ = std::make_unique<std::atomic<int>[]>(size_t(num_counters_));

  if (products < kMinProducts) {
    for (const WriteTask& task : writes_) {
      prepare(0, task);
    }
    for (const AttendTask& task : tasks_) {
      attend(0, task);
    }
    return;
  }
  context_.pool.run([this](int thread) {
    for (int i; (i = next_write_.fetch_add(1, std::memory_order_relaxed)) <
                int(writes_.size());) {
      prepare(thread, writes_[size_t(i)]);
    }
    context_.pool.barrier();
    for (int i; (i = next_task_.fetch_add(1, std::memory_order_relaxed)) <
                int(tasks_.size());) {
      attend(thread, tasks_[size_t(i)]);
    }
  });
}

void Attention::store_key(
    const Segment& segment,
    int64_t position,
    int head,
    const float* key,
    uint16_t* narrow_row) {
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
  kernels_.narrow(key, 1, type_, narrow_row, args_.head_dim);
  if (args_.head_dim % 2 != 0) {
    narrow_row[args_.head_dim] = 0;
  }
  auto* to = reinterpret_cast<uint32_t*>(keys) + column;
  for (int i = 0; i < args_.head_dim; i += 2) {
    to[i / 2 * kKvBlockSize] = load_unaligned<uint32_t>(narrow_row + i);
  }
}

void Attention::store_value(
    const Segment& segment,
    int64_t position,
    int head,
    const float* value,
    uint16_t* narrow_row) {
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
  kernels_.narrow(value, 1, type_, narrow_row, args_.head_dim);
  auto* to = reinterpret_cast<uint32_t*>(values) + row / 2 * v_pitch_;
  if (row % 2 != 0) {
    for (int i = 0; i < args_.head_dim; ++i) {
      to[i] = (to[i] & 0xffffu) | uint32_t(narrow_row[i]) << 16;
    }
    return;
  }
  // The pair's other half may hold a former sequence's infinity, and a weight
  // of zero would make it NaN.
  for (int i = 0; i < args_.head_dim; ++i) {
    to[i] = narrow_row[i];
  }
}

void Attention::prepare(int thread, const WriteTask& task) {
  const Segment& segment = *task.segment;
  int head_dim = args_.head_dim;
  size_t width = size_t(args_.num_heads) * size_t(head_dim);
  std::byte* end = thread_scratch_ + size_t(thread + 1) * thread_bytes_;
  auto* narrow_row = reinterpret_cast<uint16_t*>(
      end - (size_t(v_pitch_) * sizeof(uint16_t) + 63) / 64 * 64);
  auto* row_values = reinterpret_cast<float*>(
      reinterpret_cast<std::byte*>(narrow_row) -
      (width * sizeof(float) + 63) / 64 * 64);

  // Normalizes and turns `heads` heads in place.
  auto prepare_heads = [&](int step_row, int heads, const Norm* norm) {
    if (norm) {
      const auto& weights = static_cast<const CpuNorm&>(*norm);
      if (norm->size() == head_dim) {
        for (int head = 0; head < heads; ++head) {
          weights.apply(
              row_values + head * head_dim, row_values + head * head_dim);
        }
      } else {
        weights.apply(row_values, row_values);
      }
    }
    if (rope_) {
      int half = rope_->dims() / 2;
      const float* table = rope_rows_ + size_t(step_row) * 2 * size_t(half);
      for (int head = 0; head < heads; ++head) {
        kernels_.rotate(
            row_values + head * head_dim,
            table,
            table + half,
            half,
            rope_->interleaved());
      }
    }
  };

  for (int row = task.row; row < task.row + task.count; ++row) {
    int step_row = segment.first_row + row;
    int64_t position = segment.position + row;
    int64_t cols = int64_t(args_.num_heads + 2 * args_.num_kv_heads) * head_dim;
    const float* q = qkv_ + step_row * cols;
    const float* k = q + width;
    const float* v = k + int64_t(args_.num_kv_heads) * head_dim;

    std::memcpy(row_values, q, width * sizeof(float));
    prepare_heads(step_row, args_.num_heads, args_.q_norm);
    // The heads of a group lie side by side, except those of odd size, which
    // are padded.
    int run = head_dim % 2 == 0 ? group_ : 1;
    for (int head = 0; head < args_.num_heads; head += run) {
      size_t at = query_index(head / group_, step_row) +
                  size_t(head % group_) * size_t(q_pitch_);
      const float* from = row_values + head * head_dim;
      int count = run * head_dim;
      if (dots_ && segment.prompt) {
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

    std::memcpy(
        row_values,
        k,
        size_t(args_.num_kv_heads) * size_t(head_dim) * sizeof(float));
    prepare_heads(step_row, args_.num_kv_heads, args_.k_norm);
    for (int head = 0; head < args_.num_kv_heads; ++head) {
      store_key(
          segment, position, head, row_values + head * head_dim, narrow_row);
      store_value(segment, position, head, v + head * head_dim, narrow_row);
    }
  }
}

void Attention::attend(int thread, const AttendTask& task) {
  const Segment& segment = *task.segment;
  bool prompt = segment.prompt;
  bool dots = dots_ && prompt;
  int m = task.count * group_;
  size_t tile = size_t(tile_rows_) * size_t(group_);

  std::byte* next = thread_scratch_ + size_t(thread) * thread_bytes_;
  auto take = [&next](size_t bytes) {
    std::byte* start = next;
    next += (bytes + 63) / 64 * 64;
    return start;
  };
  auto* scores =
      reinterpret_cast<float*>(take(tile * kKvBlockSize * sizeof(float)));
  auto* weights =
      reinterpret_cast<uint16_t*>(take(tile * kKvBlockSize * sizeof(uint16_t)));
  auto* sums =
      reinterpret_cast<float*>(take(tile * size_t(v_pitch_) * sizeof(float)));
  auto* states =
      reinterpret_cast<SoftmaxState*>(take(tile * sizeof(SoftmaxState)));
  auto* factors = reinterpret_cast<float*>(take(tile * sizeof(float)));
  auto* visible =
      reinterpret_cast<VisibleRange*>(take(tile * sizeof(VisibleRange)));
  std::byte* key_copy = take(size_t(q_pitch_) * kKvBlockSize * sizeof(float));
  std::byte* value_copy = take(size_t(v_pitch_) * kKvBlockSize * sizeof(float));

  int step_row = segment.first_row + task.row;
  if (!prompt) {
    size_t partial = size_t(task.partial + task.range) * size_t(group_);
    sums = partials_ + partial * size_t(v_pitch_);
    states = partial_states_ + partial;
  }
  for (int i = 0; i < m; ++i) {
    bool sink = prompt && !args_.sinks.empty();
    int head = task.kv_head * group_ + i % group_;
    states[i] = sink ? SoftmaxState{args_.sinks[size_t(head)] * kLog2e, 1}
                     : SoftmaxState{-kInfinity, 0};
  }
  size_t query = query_index(task.kv_head, step_row);

  for (int64_t index = task.begin_block; index < task.end_block; ++index) {
    const std::byte* base = block(segment, index);
    const std::byte* keys = base + layout_.k_head(task.kv_head);
    const std::byte* values = base + layout_.v_head(task.kv_head);
    int64_t start = index * kKvBlockSize;
    // Positions of the block that some row of the tile sees, in whole pairs.
    int64_t last = segment.position + task.row + task.count - 1;
    int used = int(std::min<int64_t>(kKvBlockSize, last + 1 - start));
    int used_pairs = round_up(used, 2);
    int columns = round_up(used, 16);

    if (dots) {
      if (type_ == DType::f16) {
        kernels_.f16_to_bf16(
            reinterpret_cast<const uint16_t*>(keys),
            reinterpret_cast<uint16_t*>(key_copy),
            int64_t(q_pitch_) * kKvBlockSize);
        kernels_.f16_to_bf16(
            reinterpret_cast<const uint16_t*>(values),
            reinterpret_cast<uint16_t*>(value_copy),
            int64_t(used_pairs) * v_pitch_);
        keys = key_copy;
        values = value_copy;
      }
      kernels_.product_bf16(
          queries_bf16_ + query,
          q_pitch_,
          reinterpret_cast<const uint16_t*>(keys),
          kKvBlockSize,
          columns,
          q_pitch_,
          m,
          scores,
          kKvBlockSize,
          nullptr);
    } else {
      DType type = type_;
      if (prompt && type != DType::f32) {
        kernels_.widen(
            keys,
            type,
            kKvBlockSize,
            q_pitch_,
            reinterpret_cast<float*>(key_copy));
        kernels_.widen(
            values,
            type,
            v_pitch_,
            used_pairs,
            reinterpret_cast<float*>(value_copy));
        keys = key_copy;
        values = value_copy;
        type = DType::f32;
      }
      kernels_.product(
          queries_ + query,
          q_pitch_,
          keys,
          type,
          kKvBlockSize,
          columns,
          type == DType::f32 ? args_.head_dim : q_pitch_,
          m,
          scores,
          kKvBlockSize,
          nullptr);
    }

    for (int row = 0, i = 0; row < task.count; ++row) {
      int64_t position = segment.position + task.row + row;
      int64_t begin =
          std::clamp<int64_t>(first_visible(position) - start, 0, kKvBlockSize);
      int64_t end = std::clamp<int64_t>(position + 1 - start, 0, kKvBlockSize);
      for (int head = 0; head < group_; ++head, ++i) {
        visible[i] = {uint8_t(begin), uint8_t(end)};
      }
    }
    kernels_.softmax(
        {m,
         scores,
         dots ? weights : nullptr,
         visible,
         args_.softcap,
         states,
         factors});
    // The first block overwrites the sums.
    const float* former = index > task.begin_block ? factors : nullptr;

    if (dots) {
      kernels_.product_bf16(
          weights,
          kKvBlockSize,
          reinterpret_cast<const uint16_t*>(values),
          v_pitch_,
          v_pitch_,
          used_pairs,
          m,
          sums,
          v_pitch_,
          former);
    } else {
      bool wide = prompt || type_ == DType::f32;
      kernels_.product(
          scores,
          kKvBlockSize,
          values,
          wide ? DType::f32 : type_,
          v_pitch_,
          v_pitch_,
          wide ? used : used_pairs,
          m,
          sums,
          v_pitch_,
          former);
    }
  }

  if (!prompt) {
    if (done_[size_t(task.counter)].fetch_add(1, std::memory_order_acq_rel) ==
        task.num_ranges - 1) {
      finish_generated(task);
    }
    return;
  }
  for (int i = 0; i < m; ++i) {
    int head = task.kv_head * group_ + i % group_;
    float* to =
        out_ + (int64_t(step_row + i / group_) * args_.num_heads + head) *
                   args_.head_dim;
    kernels_.scale(to, sums + i * v_pitch_, 1 / states[i].sum, args_.head_dim);
  }
}

// Combines the ranges of one row in order, whichever thread came last.
void Attention::finish_generated(const AttendTask& task) {
  int step_row = task.segment->first_row + task.row;
  for (int i = 0; i < group_; ++i) {
    int head = task.kv_head * group_ + i;
    float* to =
        out_ + (int64_t(step_row) * args_.num_heads + head) * args_.head_dim;
    auto at = [&](int range) {
      return size_t(task.partial + range) * size_t(group_) + size_t(i);
    };
    float sink =
        args_.sinks.empty() ? -kInfinity : args_.sinks[size_t(head)] * kLog2e;
    float max = sink;
    for (int range = 0; range < task.num_ranges; ++range) {
      max = std::max(max, partial_states_[at(range)].max);
    }
    float sum = args_.sinks.empty() ? 0 : std::exp2(sink - max);
    std::memset(to, 0, size_t(args_.head_dim) * sizeof(float));
    for (int range = 0; range < task.num_ranges; ++range) {
      const SoftmaxState& state = partial_states_[at(range)];
      float factor = std::exp2(state.max - max);
      sum += state.sum * factor;
      kernels_.add_scaled(
          to, partials_ + at(range) * size_t(v_pitch_), factor, args_.head_dim);
    }
    kernels_.scale(to, to, 1 / sum, args_.head_dim);
  }
}

}  // namespace

Tensor attention(
    Context& context,
    const Step& step,
    const Tensor& qkv,
    const AttentionArgs& args,
    KvCache& cache,
    int layer) {
  Tensor out =
      context.make(step.num_rows(), int64_t(args.num_heads) * args.head_dim);
  Attention(
      context, step, qkv, args, static_cast<CpuKvCache&>(cache), layer, out)
      .run();
  return out;
}

}  // namespace mlxcel::cpu
