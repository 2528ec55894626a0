#include "ops/kv_cache.h"

namespace mlxcel {

int64_t KvCacheSpec::bytes_per_block() const {
  int64_t values = 0;
  for (const KvLayerSpec& layer : layers) {
    values += int64_t(layer.num_kv_heads) * (layer.k_dim + layer.v_dim);
  }
  return values * kKvBlockSize * int64_t(size_of(dtype));
}

}  // namespace mlxcel
