// The graph backend's paged cache. A layer's keys and values are arrays
// [num_blocks * kKvBlockSize, kv_heads, dim]; a position lies at slot
// block * kKvBlockSize + position % kKvBlockSize. A layer's recurrent states
// are an array [num_states, values], f32.
#pragma once

#include "ops/graph/context.h"
#include "ops/state_copies.h"

namespace mlxcel::graph {

class GraphKvCache : public KvCache, public StateCopies {
 public:
  GraphKvCache(std::shared_ptr<Context> context, const KvCacheSpec& spec);
  ~GraphKvCache() override;

  void reserve(int num_blocks) override;
  int num_blocks() const override {
    return num_blocks_;
  }
  void copy_block(int from, int to) override;
  size_t block_bytes() const override {
    return size_t(spec().bytes_per_block());
  }
  void save_block(int block, std::byte* out) override;
  void load_block(int block, const std::byte* in) override;
  void reserve_states(int num_states) override;
  int num_states() const override {
    return num_states_;
  }
  void copy_state(int from, int to) override;
  void clear_state(int state) override;
  size_t state_bytes() const override {
    return size_t(spec().bytes_per_state());
  }
  void save_state(int slot, std::byte* out) override;
  void load_state(int slot, const std::byte* in) override;

  // Puts rows k, v [rows, kv_heads, dim] at their slots (i32 [rows]). A layer
  // without values takes none.
  void write(
      int layer,
      const mx::array& slots,
      const mx::array& k,
      const mx::array& v);
  const mx::array& keys(int layer) const {
    return layers_[size_t(layer)].k;
  }
  const mx::array& values(int layer) const {
    return layers_[size_t(layer)].v;
  }
  const mx::array& states(int layer) const {
    return layers_[size_t(layer)].states;
  }
  // Puts values [n, values] into the slots (i32 [n]).
  void write_states(int layer, const mx::array& slots, const mx::array& values);
  void append_arrays(std::vector<mx::array>& out) const;

 private:
  struct Layer {
    mx::array k, v;
    mx::array states;
  };
  void check_states(int from, int to) const;

  std::shared_ptr<Context> context_;
  mx::Dtype dtype_;
  int num_blocks_ = 0;
  int num_states_ = 0;
  std::vector<Layer> layers_;
};

}  // namespace mlxcel::graph
