#include "ops/cpu/kv_cache.h"

#include "core/error.h"
#include "ops/cpu/attention.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

namespace mlxcel::cpu {

namespace {

constexpr size_t kVector = 64;  // bytes
// Address space only: pages get memory when first written.
constexpr size_t kSlabBytes = size_t(64) << 20;

size_t round_up(size_t value, size_t unit) {
  return (value + unit - 1) / unit * unit;
}

void check_states(int from, int to, int count) {
  if (from < 0 || to < 0 || from >= count || to >= count) {
    throw ShapeError(
        "no such slot of recurrent state",
        cat("slots ", from, " and ", to, " of ", count),
        "reserve the slots first");
  }
}

}  // namespace

CpuKvCache::CpuKvCache(const KvCacheSpec& spec) : KvCache(spec) {
  if (spec.dtype != DType::f32 && spec.dtype != DType::f16 &&
      spec.dtype != DType::bf16) {
    throw ConfigError(
        cat("no KV cache of type ", spec.dtype),
        "keys and values are kept in the activation type",
        "use F32, F16 or BF16 activations");
  }
  size_t item = size_of(spec.dtype);
  for (const KvLayerSpec& layer : spec.layers) {
    KvLayerLayout layout;
    layout.v_pitch = int(round_up(size_t(layer.v_dim), 16));
    size_t k_rows =
        item == 2 ? round_up(size_t(layer.k_dim), 2) : size_t(layer.k_dim);
    layout.k_head_bytes = k_rows * kKvBlockSize * item;
    layout.v_head_bytes = size_t(layout.v_pitch) * kKvBlockSize * item;
    layout.k_offset = block_bytes_;
    layout.v_offset =
        layout.k_offset + size_t(layer.num_kv_heads) * layout.k_head_bytes;
    block_bytes_ =
        layout.v_offset + size_t(layer.num_kv_heads) * layout.v_head_bytes;
    layout.state_offset = state_bytes_ / sizeof(float);
    state_bytes_ += round_up(size_t(layer.state) * sizeof(float), kVector);
    layers_.push_back(layout);
  }
  block_bytes_ = round_up(std::max(block_bytes_, kVector), kVector);
}

CpuKvCache::~CpuKvCache() {
  for (const Slab& slab : slabs_) {
    munmap(slab.data, slab.bytes);
  }
}

void CpuKvCache::reserve(int num_blocks) {
  if (num_blocks <= this->num_blocks()) {
    return;
  }
  size_t missing = size_t(num_blocks) - blocks_.size();
  size_t count = std::max(missing, kSlabBytes / block_bytes_);
  blocks_.reserve(blocks_.size() + count);
  // Fresh pages read as zero, so padding and the untouched half of a pair are
  // finite.
  std::byte* data = map(count * block_bytes_, "the KV cache");
  for (size_t i = 0; i < count; ++i) {
    blocks_.push_back(data + i * block_bytes_);
  }
}

std::byte* CpuKvCache::map(size_t bytes, const char* what) {
  slabs_.reserve(slabs_.size() + 1);
  void* data = mmap(
      nullptr,
      bytes,
      PROT_READ | PROT_WRITE,
      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
      -1,
      0);
  if (data == MAP_FAILED) {
    throw Error(
        cat("no memory for ", what),
        cat(bytes, " bytes: ", strerror(errno)),
        "shorten the prompt, or run fewer sequences at a time");
  }
#ifdef MADV_HUGEPAGE
  // Attention goes through a block in strips of some KiB, a layer apart: with
  // small pages each begins with misses of the TLB.
  madvise(data, bytes, MADV_HUGEPAGE);
#endif
  slabs_.push_back({static_cast<std::byte*>(data), bytes});
  return slabs_.back().data;
}

void CpuKvCache::check_block(const char* what, int block) const {
  if (block < 0 || block >= num_blocks()) {
    throw ShapeError(
        cat("cannot ", what, " a cache block that does not exist"),
        cat("block ", block, " of ", num_blocks()),
        "reserve the blocks first");
  }
}

void CpuKvCache::copy_block(int from, int to) {
  check_block("copy", from);
  check_block("copy to", to);
  if (from != to) {
    std::memcpy(block(to), block(from), block_bytes_);
  }
}

void CpuKvCache::save_block(int block, std::byte* out) {
  check_block("save", block);
  std::memcpy(out, this->block(block), block_bytes_);
}

void CpuKvCache::load_block(int block, const std::byte* in) {
  check_block("load", block);
  std::memcpy(this->block(block), in, block_bytes_);
}

void CpuKvCache::reserve_states(int num_states) {
  if (num_states <= this->num_states() || state_bytes_ == 0) {
    return;
  }
  size_t count = size_t(num_states) - states_.size();
  states_.reserve(states_.size() + count);
  std::byte* data = map(count * state_bytes_, "recurrent states");
  for (size_t i = 0; i < count; ++i) {
    states_.push_back(reinterpret_cast<float*>(data + i * state_bytes_));
  }
}

void CpuKvCache::copy_state(int from, int to) {
  check_states(from, to, num_states());
  if (from != to) {
    std::memcpy(states_[size_t(to)], states_[size_t(from)], state_bytes_);
  }
}

void CpuKvCache::clear_state(int state) {
  check_states(state, state, num_states());
  std::memset(states_[size_t(state)], 0, state_bytes_);
}

void CpuKvCache::save_state(int slot, std::byte* out) {
  check_states(slot, slot, num_states());
  std::memcpy(out, states_[size_t(slot)], state_bytes_);
}

void CpuKvCache::load_state(int slot, const std::byte* in) {
  check_states(slot, slot, num_states());
  std::memcpy(states_[size_t(slot)], in, state_bytes_);
}

std::unique_ptr<KvCache> make_kv_cache(const KvCacheSpec& spec) {
  return std::make_unique<CpuKvCache>(spec);
}

}  // namespace mlxcel::cpu
