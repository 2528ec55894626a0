#include "ops/kv_cache.h"

#include "core/error.h"

namespace mlxcel {

int64_t KvCacheSpec::bytes_per_block() const {
  int64_t values = 0;
  for (const KvLayerSpec& layer : layers) {
    values += int64_t(layer.num_kv_heads) * (layer.k_dim + layer.v_dim);
  }
  return values * kKvBlockSize * int64_t(size_of(dtype));
}

void KvCache::save_block(int, std::byte*) {
  throw Error("this KV cache cannot save its blocks", "it stays on its device");
}

void KvCache::load_block(int, const std::byte*) {
  throw Error("this KV cache cannot load blocks", "it stays on its device");
}

int64_t KvCacheSpec::bytes_per_state() const {
  int64_t values = 0;
  for (const KvLayerSpec& layer : layers) {
    values += layer.state;
  }
  return values * int64_t(sizeof(float));
}

}  // namespace mlxcel
