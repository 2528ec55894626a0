// What an attention call has to do, and which thread does it.
#include "ops/cpu/attention_call.h"

#include <algorithm>

namespace mlxcel::cpu {

namespace {

// Blocks of a range of generated rows: the unit of work between threads.
constexpr int kRangeBlocks = 2;
// Rows written by one thread stand in whole cache lines of keys: 16 positions.
constexpr int kWriteRows = 16;
// Up to this many generated rows products wait for their own weights, and
// would not compute longer than they read.
constexpr int kFewRows = 4;
// Of what a thread is going to read, so much is fetched early: it waits in the
// second and third cache, beside the products' weights.
constexpr int64_t kMostLines = (int64_t(4) << 20) / 64;

// Generated rows by position in the order of memory, and the blocks that they
// see, counted once a key head.
struct GeneratedRows {
  const Step& step;
  const Window& window;
  int heads;

  int64_t first_block(int64_t position) const {
    return window.first(position) / kKvBlockSize;
  }
  int64_t row_blocks(int64_t position) const {
    return (position / kKvBlockSize + 1 - first_block(position)) * heads;
  }
  int64_t blocks() const {
    int64_t count = 0;
    for (const Segment& segment : step.segments) {
      for (int row = 0; row < segment.num_rows && !segment.prompt; ++row) {
        count += row_blocks(segment.position + row);
      }
    }
    return count;
  }

  // Calls f(task) with the tasks that start at one of the blocks [from, to).
  template <typename Function>
  void for_tasks(int64_t from, int64_t to, Function f) const;
};

template <typename Function>
void GeneratedRows::for_tasks(int64_t from, int64_t to, Function f) const {
  int partial = 0, counter = 0;
  int64_t at = 0;
  for (const Segment& segment : step.segments) {
    for (int row = 0; row < segment.num_rows && !segment.prompt; ++row) {
      int64_t position = segment.position + row;
      int64_t begin = first_block(position);
      int64_t end = position / kKvBlockSize + 1;
      int first_range = int(begin / kRangeBlocks);
      int num_ranges = int((end - 1) / kRangeBlocks) - first_range + 1;
      int64_t next = at + (end - begin) * heads;
      bool wanted = next > from && at < to;
      for (int range = 0; wanted && range < num_ranges; ++range) {
        int64_t start = int64_t(first_range + range) * kRangeBlocks;
        int64_t first = std::max(begin, start);
        int64_t last = std::min(end, start + kRangeBlocks);
        for (int head = 0; head < heads; ++head, at += last - first) {
          if (at >= from && at < to) {
            f(AttendTask{
                &segment,
                head,
                row,
                1,
                first,
                last,
                range,
                num_ranges,
                partial + head * num_ranges,
                counter + head});
          }
        }
      }
      at = next;
      partial += heads * num_ranges;
      counter += heads;
    }
  }
}

// Blocks [share_begin(t), share_begin(t + 1)) are thread t's.
int64_t share_begin(int64_t blocks, int thread, int threads) {
  return blocks * thread / threads;
}

}  // namespace

int64_t AttentionCall::plan() {
  for (const Segment& segment : step_.segments) {
    plan_writes(segment);
    if (segment.prompt) {
      plan_tiles(segment);
    }
  }
  // The longest first, so that the last ones even out the threads.
  auto cost = [](const AttendTask& task) {
    return (task.end_block - task.begin_block) * task.count;
  };
  std::sort(
      tiles_.begin(), tiles_.end(), [&](const auto& left, const auto& right) {
        return cost(left) > cost(right);
      });
  int64_t blocks = plan_generated();
  for (const AttendTask& task : tiles_) {
    blocks += cost(task);
  }
  return blocks;
}

void AttentionCall::plan_writes(const Segment& segment) {
  for (int row = 0; row < segment.num_rows;) {
    int64_t position = segment.position + row;
    int count = std::min<int>(
        segment.num_rows - row, kWriteRows - int(position % kWriteRows));
    writes_.push_back({&segment, row, count});
    row += count;
  }
}

void AttentionCall::plan_tiles(const Segment& segment) {
  for (int head = 0; head < args_.num_kv_heads; ++head) {
    for (int row = 0; row < segment.num_rows; row += tile_rows_) {
      int count = std::min(tile_rows_, segment.num_rows - row);
      int64_t first = segment.position + row;
      tiles_.push_back(
          {&segment,
           head,
           row,
           count,
           args_.window.first(first) / kKvBlockSize,
           (first + count - 1) / kKvBlockSize + 1});
    }
  }
}

int64_t AttentionCall::plan_generated() {
  GeneratedRows rows{step_, args_.window, args_.num_kv_heads};
  int64_t blocks = rows.blocks();
  int threads = context_.pool.size();
  shares_ = std::vector<Share>(size_t(threads));
  generated_.reserve(size_t(blocks / kRangeBlocks + 1));
  for (int thread = 0; thread < threads; ++thread) {
    Share& share = shares_[size_t(thread)];
    share.next = int(generated_.size());
    rows.for_tasks(
        share_begin(blocks, thread, threads),
        share_begin(blocks, thread + 1, threads),
        [&](const AttendTask& task) { generated_.push_back(task); });
    share.end = int(generated_.size());
  }
  if (!generated_.empty()) {
    const AttendTask& last = generated_.back();
    num_partials_ = last.partial + last.num_ranges;
    num_counters_ = last.counter + 1;
  }
  return blocks;
}

void AttentionCall::read_ahead(int thread) const {
  if (following_ == nullptr || step_.num_prompt_rows > 0 ||
      step_.num_rows() <= kFewRows) {
    return;
  }
  FetchList& list = context_.ahead->start(thread, following_->weights);
  const KvLayerLayout& layout = cache_.layer(following_->layer);
  const KvLayerSpec& spec = cache_.spec().layers[size_t(following_->layer)];
  GeneratedRows rows{step_, following_->window, spec.num_kv_heads};
  int64_t blocks = rows.blocks();
  int threads = context_.pool.size();
  rows.for_tasks(
      share_begin(blocks, thread, threads),
      share_begin(blocks, thread + 1, threads),
      [&](const AttendTask& task) {
        for (int64_t index = task.begin_block;
             index < task.end_block && list.lines() < kMostLines;
             ++index) {
          add_reads(task, index, layout, list);
        }
      });
}

// What a generated row reads of a block, of a layer laid out like this.
void AttentionCall::add_reads(
    const AttendTask& task,
    int64_t index,
    const KvLayerLayout& layout,
    FetchList& list) const {
  constexpr size_t kRowBytes = kKvBlockSize * sizeof(float);
  const std::byte* block = cache_.block(task.segment->blocks[size_t(index)]);
  int used = used_positions(task, index);
  list.add(
      block + layout.k_head(task.kv_head),
      size_t(round_up(used, 16)) * sizeof(float),
      int64_t(layout.k_head_bytes / kRowBytes),
      kRowBytes);
  if (layout.v_head_bytes > 0) {
    int pair_rows = type_ == DType::f32 ? used : round_up(used, 2) / 2;
    list.add(
        block + layout.v_head(task.kv_head),
        size_t(pair_rows) * size_t(layout.v_pitch) * sizeof(float),
        1,
        0);
  }
}

}  // namespace mlxcel::cpu
