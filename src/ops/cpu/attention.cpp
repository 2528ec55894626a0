#include "ops/cpu/attention.h"

#include "ops/cpu/attention_call.h"

#include <algorithm>
#include <bit>

namespace mlxcel::cpu {

namespace {

// Query rows (times heads of a group) of a prompt tile: enough that converting
// a block of keys costs little beside the products. Tiles are a power of two
// rows, so that they end where blocks do.
constexpr int kTileRows = 64;
// The same where values are turned from keys, which costs more.
constexpr int kTurningTileRows = 256;
// Below this many products (a microsecond of them) a fork and a barrier cost
// more than they save.
constexpr int64_t kMinProducts = 80000;

}  // namespace

AttentionCall::AttentionCall(
    Context& context,
    const Step& step,
    const Tensor& qkv,
    const AttentionArgs& args,
    CpuKvCache& cache,
    int layer,
    const Tensor* shared,
    int value_dim)
    : context_(context),
      step_(step),
      qkv_(qkv),
      shared_(shared),
      args_(args),
      cache_(cache),
      layout_(cache.layer(layer)),
      layer_(layer),
      kernels_(attention_kernels(context.isa)),
      rope_(static_cast<const CpuRope*>(args.rope)),
      type_(cache.spec().dtype),
      dots_(kernels_.product_bf16 && type_ != DType::f32),
      group_(args.num_heads / args.num_kv_heads),
      values_in_keys_(value_dim > 0),
      v_dim_(values_in_keys_ ? value_dim : args.head_dim),
      q_pitch_(round_up(args.head_dim, 2)),
      v_pitch_(values_in_keys_ ? round_up(v_dim_, 16) : layout_.v_pitch),
      q_scale_(args.softcap > 0 ? args.scale : args.scale * kLog2e),
      tile_rows_(int(std::bit_floor(unsigned(std::max(
          1, (values_in_keys_ ? kTurningTileRows : kTileRows) / group_))))) {}

void AttentionCall::make_scratch() {
  size_t tile = size_t(tile_rows_) * size_t(group_);
  size_t width = size_t(args_.num_heads) * size_t(args_.head_dim);
  at_.scores = thread_layout_.add<float>(tile * kKvBlockSize);
  at_.weights_bf16 = thread_layout_.add<uint16_t>(tile * kKvBlockSize);
  at_.sums = thread_layout_.add<float>(tile * size_t(v_pitch_));
  at_.states = thread_layout_.add<SoftmaxState>(tile);
  at_.factors = thread_layout_.add<float>(tile);
  at_.visible = thread_layout_.add<VisibleRange>(tile);
  at_.keys = thread_layout_.add<float>(size_t(q_pitch_) * kKvBlockSize);
  at_.values = thread_layout_.add<float>(size_t(v_pitch_) * kKvBlockSize);
  at_.row = thread_layout_.add<float>(width);
  at_.narrow =
      thread_layout_.add<uint16_t>(size_t(std::max(q_pitch_, v_pitch_)));

  size_t rows = size_t(step_.num_rows()) * size_t(args_.num_heads);
  size_t partial_rows = size_t(num_partials_) * size_t(group_);
  ScratchLayout layout;
  size_t queries_at = layout.add<float>(rows * size_t(q_pitch_));
  size_t bf16_at = layout.add<uint16_t>(dots_ ? rows * size_t(q_pitch_) : 0);
  size_t partials_at = layout.add<float>(partial_rows * size_t(v_pitch_));
  size_t states_at = layout.add<SoftmaxState>(partial_rows);
  size_t threads_at = layout.add<std::byte>(
      thread_layout_.bytes() * size_t(context_.pool.size()));

  buffer_ = context_.make(1, int64_t(layout.bytes() / sizeof(float)));
  auto* base = reinterpret_cast<std::byte*>(data(buffer_));
  queries_ = reinterpret_cast<float*>(base + queries_at);
  queries_bf16_ = reinterpret_cast<uint16_t*>(base + bf16_at);
  partials_ = reinterpret_cast<float*>(base + partials_at);
  partial_states_ = reinterpret_cast<SoftmaxState*>(base + states_at);
  thread_buffer_ = base + threads_at;
  done_ = std::make_unique<std::atomic<int>[]>(size_t(num_counters_));
}

AttentionScratch AttentionCall::scratch(int thread) const {
  std::byte* base = thread_buffer_ + size_t(thread) * thread_layout_.bytes();
  return {
      .scores = reinterpret_cast<float*>(base + at_.scores),
      .weights_bf16 = reinterpret_cast<uint16_t*>(base + at_.weights_bf16),
      .sums = reinterpret_cast<float*>(base + at_.sums),
      .states = reinterpret_cast<SoftmaxState*>(base + at_.states),
      .factors = reinterpret_cast<float*>(base + at_.factors),
      .visible = reinterpret_cast<VisibleRange*>(base + at_.visible),
      .keys = reinterpret_cast<float*>(base + at_.keys),
      .values = reinterpret_cast<float*>(base + at_.values),
      .row = reinterpret_cast<float*>(base + at_.row),
      .narrow = reinterpret_cast<uint16_t*>(base + at_.narrow),
  };
}

Tensor AttentionCall::run() {
  result_ = context_.make(step_.num_rows(), int64_t(args_.num_heads) * v_dim_);
  out_ = data(result_);
  // Multiplications, in whole blocks.
  int64_t products = plan() * group_ * (q_pitch_ + v_pitch_) * kKvBlockSize;
  following_ = context_.ahead->begin_call(cache_.calls(), layer_, args_.window);
  if (rope_) {
    rope_rows_ = rope_->rows_of(step_);
  }

  make_scratch();

  if (products < kMinProducts) {
    for (const WriteTask& task : writes_) {
      prepare(scratch(0), task);
    }
    for (const AttendTask& task : tiles_) {
      attend(scratch(0), task, nullptr);
    }
    for (const AttendTask& task : generated_) {
      attend(scratch(0), task, nullptr);
    }
    return result_;
  }
  context_.pool.run([this](int thread) {
    AttentionScratch own = scratch(thread);
    for (int i; (i = next_write_.fetch_add(1, std::memory_order_relaxed)) <
                int(writes_.size());) {
      prepare(own, writes_[size_t(i)]);
    }
    context_.pool.barrier();
    attend_all(own, thread);
    read_ahead(thread);
  });
  return result_;
}

void AttentionCall::attend_all(const AttentionScratch& scratch, int thread) {
  for (int i; (i = next_tile_.fetch_add(1, std::memory_order_relaxed)) <
              int(tiles_.size());) {
    attend(scratch, tiles_[size_t(i)], nullptr);
  }
  // A thread that is done with its own rows helps others.
  for (size_t n = 0; n < shares_.size(); ++n) {
    Share& share = shares_[(size_t(thread) + n) % shares_.size()];
    for (int i; (i = share.next.fetch_add(1, std::memory_order_relaxed)) <
                share.end;) {
      attend(
          scratch,
          generated_[size_t(i)],
          i + 1 < share.end ? &generated_[size_t(i) + 1] : nullptr);
    }
  }
}

Tensor attention(
    Context& context,
    const Step& step,
    const Tensor& qkv,
    const AttentionArgs& args,
    KvCache& cache,
    int layer,
    const Tensor* shared) {
  return AttentionCall(
             context,
             step,
             qkv,
             args,
             static_cast<CpuKvCache&>(cache),
             layer,
             shared)
      .run();
}

}  // namespace mlxcel::cpu
