#include "ops/graph/kv_cache.h"

#include "core/error.h"

#include <algorithm>
#include <cstring>

namespace mlxcel::graph {

GraphKvCache::GraphKvCache(
    std::shared_ptr<Context> context, const KvCacheSpec& spec)
    : KvCache(spec),
      context_(std::move(context)),
      dtype_(mlx_dtype(spec.dtype)) {
  for (const KvLayerSpec& layer : spec.layers) {
    layers_.push_back(
        {mx::zeros({0, layer.num_kv_heads, layer.k_dim}, dtype_),
         mx::zeros({0, layer.num_kv_heads, layer.v_dim}, dtype_),
         mx::zeros({0, int_of(layer.state)}, mx::float32)});
  }
  context_->caches.push_back(this);
}

GraphKvCache::~GraphKvCache() {
  std::erase(context_->caches, this);
}

void GraphKvCache::reserve(int num_blocks) {
  if (num_blocks <= num_blocks_) {
    return;
  }
  context_->enter();
  // Growing copies, so it grows by a quarter at least.
  int target = std::max(num_blocks, num_blocks_ + num_blocks_ / 4);
  int slots = int_of(int64_t(target) * kKvBlockSize);
  auto grow = [&](mx::array& array) {
    mx::array grown =
        mx::zeros({slots, array.shape(1), array.shape(2)}, dtype_);
    if (num_blocks_ > 0) {
      grown = mx::slice_update(
          grown, array, mx::Shape{0, 0, 0}, mx::Shape(array.shape()));
    }
    grown.eval();
    array = grown;
  };
  for (Layer& layer : layers_) {
    for (mx::array* array : {&layer.k, &layer.v}) {
      if (array->shape(1) > 0 && array->shape(2) > 0) {
        grow(*array);
      }
    }
  }
  num_blocks_ = target;
}

void GraphKvCache::copy_block(int from, int to) {
  if (from < 0 || to < 0 || from >= num_blocks_ || to >= num_blocks_) {
    throw ShapeError(
        cat("cannot copy cache block ", from, " to ", to),
        cat("the cache holds ", num_blocks_, " blocks"));
  }
  context_->enter();
  auto copy = [&](mx::array& array) {
    int heads = array.shape(1), dim = array.shape(2);
    mx::array block = mx::slice(
        array,
        mx::Shape{from * kKvBlockSize, 0, 0},
        mx::Shape{(from + 1) * kKvBlockSize, heads, dim});
    array = mx::slice_update(
        array,
        block,
        mx::Shape{to * kKvBlockSize, 0, 0},
        mx::Shape{(to + 1) * kKvBlockSize, heads, dim});
  };
  for (Layer& layer : layers_) {
    for (mx::array* array : {&layer.k, &layer.v}) {
      if (array->size() > 0) {
        copy(*array);
      }
    }
  }
}

// A block's keys and values, layer by layer, in the cache's own type.
void GraphKvCache::save_block(int block, std::byte* out) {
  context_->enter();
  for (const Layer& layer : layers_) {
    for (const mx::array* array : {&layer.k, &layer.v}) {
      if (array->size() == 0) {
        continue;
      }
      mx::array part = mx::contiguous(mx::slice(
          *array,
          mx::Shape{block * kKvBlockSize, 0, 0},
          mx::Shape{
              (block + 1) * kKvBlockSize, array->shape(1), array->shape(2)}));
      part.eval();
      std::memcpy(out, part.data<char>(), part.nbytes());
      out += part.nbytes();
    }
  }
}

void GraphKvCache::load_block(int block, const std::byte* in) {
  context_->enter();
  for (Layer& layer : layers_) {
    for (mx::array* array : {&layer.k, &layer.v}) {
      if (array->size() == 0) {
        continue;
      }
      int heads = array->shape(1), dim = array->shape(2);
      mx::array part =
          mx::contiguous(mx::zeros({kKvBlockSize, heads, dim}, dtype_));
      part.eval();
      std::memcpy(part.data<char>(), in, part.nbytes());
      in += part.nbytes();
      *array = mx::slice_update(
          *array,
          part,
          mx::Shape{block * kKvBlockSize, 0, 0},
          mx::Shape{(block + 1) * kKvBlockSize, heads, dim});
    }
  }
}

void GraphKvCache::reserve_states(int num_states) {
  if (num_states <= num_states_) {
    return;
  }
  context_->enter();
  int target = std::max(num_states, num_states_ + num_states_ / 4);
  for (Layer& layer : layers_) {
    int values = layer.states.shape(1);
    if (values == 0) {
      continue;
    }
    mx::array fresh = mx::zeros({target - num_states_, values}, mx::float32);
    layer.states =
        num_states_ == 0 ? fresh : mx::concatenate({layer.states, fresh}, 0);
    layer.states.eval();
  }
  num_states_ = target;
}

void GraphKvCache::copy_state(int from, int to) {
  check_states(from, to);
  context_->enter();
  for (Layer& layer : layers_) {
    int values = layer.states.shape(1);
    if (values > 0) {
      mx::array row = mx::slice(
          layer.states, mx::Shape{from, 0}, mx::Shape{from + 1, values});
      layer.states = mx::slice_update(
          layer.states, row, mx::Shape{to, 0}, mx::Shape{to + 1, values});
    }
  }
}

void GraphKvCache::clear_state(int state) {
  check_states(state, state);
  context_->enter();
  for (Layer& layer : layers_) {
    int values = layer.states.shape(1);
    if (values > 0) {
      layer.states = mx::slice_update(
          layer.states,
          mx::zeros({1, values}, mx::float32),
          mx::Shape{state, 0},
          mx::Shape{state + 1, values});
    }
  }
}

void GraphKvCache::save_state(int slot, std::byte* out) {
  check_states(slot, slot);
  context_->enter();
  for (const Layer& layer : layers_) {
    int values = layer.states.shape(1);
    if (values > 0) {
      mx::array row = mx::contiguous(mx::slice(
          layer.states, mx::Shape{slot, 0}, mx::Shape{slot + 1, values}));
      row.eval();
      std::memcpy(out, row.data<char>(), row.nbytes());
      out += row.nbytes();
    }
  }
}

void GraphKvCache::load_state(int slot, const std::byte* in) {
  check_states(slot, slot);
  context_->enter();
  for (Layer& layer : layers_) {
    int values = layer.states.shape(1);
    if (values > 0) {
      mx::array row = mx::contiguous(mx::zeros({1, values}, mx::float32));
      row.eval();
      std::memcpy(row.data<char>(), in, row.nbytes());
      in += row.nbytes();
      layer.states = mx::slice_update(
          layer.states, row, mx::Shape{slot, 0}, mx::Shape{slot + 1, values});
    }
  }
}

void GraphKvCache::check_states(int from, int to) const {
  if (from < 0 || to < 0 || from >= num_states_ || to >= num_states_) {
    throw ShapeError(
        "no such slot of recurrent state",
        cat("slots ", from, " and ", to, " of ", num_states_),
        "reserve the slots first");
  }
}

void GraphKvCache::write_states(
    int layer, const mx::array& slots, const mx::array& values) {
  mx::array& states = layers_[size_t(layer)].states;
  states = mx::scatter(states, slots, mx::expand_dims(values, 1), 0);
}

void GraphKvCache::write(
    int layer, const mx::array& slots, const mx::array& k, const mx::array& v) {
  Layer& target = layers_[size_t(layer)];
  auto put = [&](mx::array& array, const mx::array& rows) {
    mx::array updates = mx::astype(mx::expand_dims(rows, 1), dtype_);
    // The old handle goes before evaluation, so the write is in place.
    array = mx::scatter(array, slots, updates, 0);
  };
  put(target.k, k);
  if (target.v.shape(2) > 0) {
    put(target.v, v);
  }
}

void GraphKvCache::append_arrays(std::vector<mx::array>& out) const {
  for (const Layer& layer : layers_) {
    for (const mx::array* array : {&layer.k, &layer.v, &layer.states}) {
      if (array->size() > 0) {
        out.push_back(*array);
      }
    }
  }
}

}  // namespace mlxcel::graph
