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
         mx::zeros({0, layer.num_kv_heads, layer.v_dim}, dtype_)});
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
    grow(layer.k);
    grow(layer.v);
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
    copy(layer.k);
    copy(layer.v);
  }
}

// A block's keys and values, layer by layer, in the cache's own type.
void GraphKvCache::save_block(int block, std::byte* out) {
  context_->enter();
  for (const Layer& layer : layers_) {
    for (const mx::array* array : {&layer.k, &layer.v}) {
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

void GraphKvCache::write(
    int layer, const mx::array& slots, const mx::array& k, const mx::array& v) {
  Layer& target = layers_[size_t(layer)];
  auto put = [&](mx::array& array, const mx::array& rows) {
    mx::array updates = mx::astype(mx::expand_dims(rows, 1), dtype_);
    // The old handle goes before evaluation, so the write is in place.
    array = mx::scatter(array, slots, updates, 0);
  };
  put(target.k, k);
  put(target.v, v);
}

void GraphKvCache::append_arrays(std::vector<mx::array>& out) const {
  for (const Layer& layer : layers_) {
    if (layer.k.size() > 0) {
      out.push_back(layer.k);
      out.push_back(layer.v);
    }
  }
}

}  // namespace mlxcel::graph
