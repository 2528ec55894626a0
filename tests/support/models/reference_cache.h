// Where the reference backend keeps what it has read of each sequence.
#pragma once

#include "ops/kv_cache.h"
#include "support/models/reference_parts.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

namespace mlxcel::testing::reference {

// Keys and values by layer, block and place.
class ReferenceCache : public KvCache {
 public:
  using KvCache::KvCache;
  void reserve(int num_blocks) override {
    blocks_ = std::max(blocks_, num_blocks);
  }
  int num_blocks() const override {
    return blocks_;
  }
  void copy_block(int from, int to) override {
    for (auto& layer : entries) {
      for (int i = 0; i < kKvBlockSize; ++i) {
        layer[{to, i}] = layer[{from, i}];
      }
    }
  }
  void reserve_states(int num_states) override {
    for (const KvLayerSpec& layer : spec().layers) {
      size_t index = size_t(&layer - spec().layers.data());
      for (int i = states_; i < num_states; ++i) {
        states[index].emplace_back(size_t(layer.state));
      }
    }
    states_ = std::max(states_, num_states);
  }
  int num_states() const override {
    return states_;
  }
  void copy_state(int from, int to) override {
    for (Rows& layer : states) {
      layer[size_t(to)] = layer[size_t(from)];
    }
  }
  void clear_state(int state) override {
    for (Rows& layer : states) {
      std::fill(layer[size_t(state)].begin(), layer[size_t(state)].end(), 0);
    }
  }
  using Entry = CacheEntry;
  // By layer and slot.
  std::vector<Rows> states{spec().layers.size()};
  std::vector<std::map<std::pair<int, int>, Entry>> entries{
      spec().layers.size()};

 private:
  int blocks_ = 0;
  int states_ = 0;
};

}  // namespace mlxcel::testing::reference
