// What a model keeps of the sequences it has read. Keys and values stand in
// blocks of fixed length, for all layers of a model: a block holds the same
// positions of every layer; sequences own lists of block ids. Recurrent layers
// keep a state of fixed size, whatever the length: a slot holds that of all
// layers; a sequence owns one. The memory belongs to the backend.
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
  int k_dim = 0;      // head size of the keys
  int v_dim = 0;      // head size of the values
  int64_t state = 0;  // f32 values of recurrent state, for a sequence
};

struct KvCacheSpec {
  std::vector<KvLayerSpec> layers;
  DType dtype = DType::f16;  // the activation dtype: f32, f16 or bf16

  int64_t bytes_per_block() const;
  int64_t bytes_per_state() const;  // 0: no layer is recurrent
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

  // Slots of recurrent state: grows to at least this many; what the slots hold
  // stays.
  virtual void reserve_states(int num_states) = 0;
  virtual int num_states() const = 0;
  virtual void copy_state(int from, int to) = 0;
  // To zeros, which is what every recurrence starts from.
  virtual void clear_state(int state) = 0;

 private:
  KvCacheSpec spec_;
};

}  // namespace mlxcel
