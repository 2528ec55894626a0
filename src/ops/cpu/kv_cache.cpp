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
  slabs_.reserve(slabs_.size() + 1);
  size_t bytes = count * block_bytes_;
  // Fresh pages read as zero, so padding and the untouched half of a pair are
  // finite.
  void* data = mmap(
      nullptr,
      bytes,
      PROT_READ | PROT_WRITE,
      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
      -1,
      0);
  if (data == MAP_FAILED) {
    throw Error(
        "no memory for the KV cache",
        cat(count, " blocks of ", block_bytes_, " bytes: ", strerror(errno)),
        "shorten the prompt, or run fewer sequences at a time");
  }
  slabs_.push_back({static_cast<std::byte*>(data), bytes});
  for (size_t i = 0; i < count; ++i) {
    blocks_.push_back(slabs_.back().data + i * block_bytes_);
  }
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

std::unique_ptr<KvCache> make_kv_cache(const KvCacheSpec& spec) {
  return std::make_unique<CpuKvCache>(spec);
}

}  // namespace mlxcel::cpu
