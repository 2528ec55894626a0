#include "loading/content_digest.h"

#include "adapters/digest.h"
#include "core/error.h"
#include "core/thread_pool.h"

#include <atomic>
#include <vector>

namespace mlxcel {

std::string content_digest(
    const Config& config, const WeightMap& weights, int threads) {
  std::vector<std::pair<const std::string*, const WeightTensor*>> tensors;
  for (const auto& [key, tensor] : weights) {
    tensors.emplace_back(&key, &tensor);
  }
  std::vector<std::string> digests(tensors.size());
  ThreadPool pool(threads);
  std::atomic<size_t> next{0};
  pool.run([&](int) {
    for (size_t i = next++; i < tensors.size(); i = next++) {
      Sha256 digest;
      digest.update(tensors[i].second->data, tensors[i].second->bytes);
      digests[i] = digest.hex();
    }
  });
  Sha256 whole;
  std::string text = config.json().dump();
  whole.update(text.data(), text.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& [key, tensor] = tensors[i];
    text = cat('\n', *key, ' ', name_of(tensor->dtype));
    for (int64_t size : tensor->shape) {
      text += cat(' ', size);
    }
    text += cat(' ', digests[i]);
    whole.update(text.data(), text.size());
  }
  return whole.hex();
}

}  // namespace mlxcel
