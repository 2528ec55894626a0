// The CPU backend's paged cache. Its layout is the one the attention products
// read: columns side by side, so that no product needs a sum across a vector.
//   16-bit types, elements k and k + 1 of a column adjacent:
//     keys [ceil(k_dim / 2)][64 positions][2], values [32][v_pitch][2]
//   f32: keys [k_dim][64 positions], values [64 positions][v_pitch]
// A layer of a block holds its heads' keys, then its heads' values.
#pragma once

#include "ops/cpu/read_ahead.h"
#include "ops/kv_cache.h"
#include "ops/state_copies.h"

#include <cstddef>
#include <memory>
#include <vector>

namespace mlxcel::cpu {

// Where one layer's heads lie inside a block.
struct KvLayerLayout {
  size_t k_offset = 0, k_head_bytes = 0;
  size_t v_offset = 0, v_head_bytes = 0;
  size_t state_offset = 0;  // in a slot of recurrent state, in values
  int v_pitch = 0;          // v_dim rounded up to whole vectors

  size_t k_head(int head) const {
    return k_offset + size_t(head) * k_head_bytes;
  }
  size_t v_head(int head) const {
    return v_offset + size_t(head) * v_head_bytes;
  }
};

class CpuKvCache : public KvCache, public StateCopies {
 public:
  explicit CpuKvCache(const KvCacheSpec& spec);
  ~CpuKvCache() override;
  void reserve(int num_blocks) override;
  int num_blocks() const override {
    return int(blocks_.size());
  }
  void copy_block(int from, int to) override;
  size_t block_bytes() const override {
    return block_bytes_;
  }
  void save_block(int block, std::byte* out) override;
  void load_block(int block, const std::byte* in) override;
  void reserve_states(int num_states) override;
  int num_states() const override {
    return int(states_.size());
  }
  void copy_state(int from, int to) override;
  void clear_state(int state) override;
  size_t state_bytes() const override {
    return state_bytes_;
  }
  void save_state(int slot, std::byte* out) override;
  void load_state(int slot, const std::byte* in) override;

  std::byte* block(int32_t id) const {
    return blocks_[size_t(id)];
  }
  // A layer's recurrent state in a slot, on a cache line.
  float* state(int32_t slot, int layer_index) const {
    return states_[size_t(slot)] + layer(layer_index).state_offset;
  }
  ReadAhead::Calls& calls() {
    return calls_;
  }
  const KvLayerLayout& layer(int index) const {
    return layers_[size_t(index)];
  }

 private:
  void check_block(const char* what, int block) const;

  struct Slab {
    std::byte* data;
    size_t bytes;
  };
  // Zeroed pages that get memory when first written.
  std::byte* map(size_t bytes, const char* what);
  std::vector<KvLayerLayout> layers_;
  ReadAhead::Calls calls_;
  size_t block_bytes_ = 0;
  std::vector<Slab> slabs_;
  std::vector<std::byte*> blocks_;
  size_t state_bytes_ = 0;
  std::vector<float*> states_;
};

}  // namespace mlxcel::cpu
