// Keys and values in blocks of fixed length, for all layers of a model. A block
// holds the same positions of every layer; sequences own lists of block ids.
// The memory belongs to the backend.
#pragma once

#include "core/dtype.h"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace mlxcel {

// Positions a block holds. Attention reduces over blocks in order, so the sum
// does not depend on how a prompt was cut into steps.
constexpr int kKvBlockSize = 64;

struct KvLayerSpec {
  int num_kv_heads = 0;
  int k_dim = 0;  // head size of the keys
  int v_dim = 0;  // head size of the values
};

struct KvCacheSpec {
  std::vector<KvLayerSpec> layers;
  DType dtype = DType::f16;  // the activation dtype: f32, f16 or bf16

  int64_t bytes_per_block() const;
};

class KvCache {
 public:
  explicit KvCache(KvCacheSpec spec) : spec_(std::move(spec)) {}
  virtual ~KvCache() = default;
  const KvCacheSpec& spec() const {
    return spec_;
  }
  // Grows to at least this many blocks; existing content stays.
  virtual void reserve(int num_blocks) = 0;
  virtual int num_blocks() const = 0;
  virtual void copy_block(int from, int to) = 0;

  // A block's content in host memory, for sequences that give way to others.
  // What save_block writes is what load_block takes, of one cache only. Throws
  // Error where a cache has no such way.
  virtual size_t block_bytes() const {
    return size_t(spec_.bytes_per_block());
  }
  virtual void save_block(int block, std::byte* out);
  virtual void load_block(int block, const std::byte* in);

 private:
  KvCacheSpec spec_;
};

}  // namespace mlxcel
