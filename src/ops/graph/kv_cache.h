// The graph backend's paged cache. A layer's keys and values are arrays
// [num_blocks * kKvBlockSize, kv_heads, dim]; a position lies at slot
// block * kKvBlockSize + position % kKvBlockSize.
#pragma once

#include "ops/graph/context.h"

namespace mlxcel::graph {

class GraphKvCache : public KvCache {
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

  // Puts rows k, v [rows, kv_heads, dim] at their slots (i32 [rows]).
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
  void append_arrays(std::vector<mx::array>& out) const;

 private:
  struct Layer {
    mx::array k, v;
  };
  std::shared_ptr<Context> context_;
  mx::Dtype dtype_;
  int num_blocks_ = 0;
  std::vector<Layer> layers_;
};

}  // namespace mlxcel::graph
