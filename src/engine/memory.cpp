#include "engine/memory.h"

#include "engine/block_manager.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>

namespace mlxcel {

namespace {

// The program's own pages, its libraries and the fixed tables.
constexpr uint64_t kProgramBytes = 14 << 20;
// A tokenizer's vocabulary and merges, by entry.
constexpr uint64_t kTokenizerBytesPerToken = 310;

// A file with one number, or 0 ("max" and absence are no limit).
uint64_t read_number(const std::string& path) {
  std::ifstream file(path);
  uint64_t value = 0;
  file >> value;
  return file ? value : 0;
}

// The cgroup (version 2) this process is in, as a path below the root.
std::string cgroup_folder() {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("0::")) {
      return "/sys/fs/cgroup" + line.substr(3);
    }
  }
  return {};
}

}  // namespace

KvCacheSpec kv_cache_spec_of(const DecoderSpec& spec, DType dtype) {
  KvCacheSpec cache;
  cache.dtype = dtype;
  for (const BlockSpec& block : spec.blocks) {
    cache.layers.push_back(cache_of(block));
  }
  return cache;
}

MemoryEstimate estimate_memory(const DecoderSpec& spec, const MemoryUse& use) {
  MemoryEstimate estimate;
  estimate.weights = use.weight_bytes;
  estimate.kv_cache =
      uint64_t(kv_cache_spec_of(spec, use.activation_dtype).bytes_per_block()) *
      uint64_t(blocks_for(use.context)) * uint64_t(use.batch);
  estimate.kv_cache +=
      uint64_t(kv_cache_spec_of(spec, use.activation_dtype).bytes_per_state()) *
      uint64_t(use.batch);

  // At the widest point of a block: the residual, the block's input and output,
  // and either q, k, v with the attention's result or the MLP's inner rows. A
  // mixture keeps the inner row and the result of every expert that a row uses.
  uint64_t rows = uint64_t(std::min<int64_t>(
      use.prefill_chunk, std::max<int64_t>(use.context * use.batch, 1)));
  uint64_t widest = 0;
  for (const BlockSpec& block : spec.blocks) {
    const HeadCounts& heads = block.attention.heads;
    uint64_t attention =
        uint64_t(2 * heads.query + 2 * heads.key_value) * uint64_t(heads.dim);
    if (block.mixer) {
      attention = uint64_t(block.mixer->columns());
    }
    uint64_t inner = uint64_t(block.mlp.intermediate_size) *
                     (block.mlp.kind == MlpKind::plain ? 1 : 2);
    if (block.feed_forward) {
      inner = uint64_t(block.feed_forward->columns());
    } else if (const auto& moe = block.moe) {
      inner = uint64_t(moe->experts_per_token) *
                  uint64_t(moe->expert.intermediate_size + spec.hidden_size) +
              3 * uint64_t(moe->shared.intermediate_size);
    }
    widest = std::max({widest, attention, inner});
  }
  uint64_t columns = 3 * uint64_t(spec.hidden_size) + widest;
  // Logits stand in the backend's tensor and, where that is not on the host, in
  // the engine's copy.
  uint64_t logits = 2 * uint64_t(use.output_rows) * uint64_t(spec.vocab_size);
  estimate.activations = sizeof(float) * (rows * columns + logits);
  estimate.headroom =
      kProgramBytes + kTokenizerBytesPerToken * uint64_t(spec.vocab_size);
  return estimate;
}

uint64_t available_memory() {
  uint64_t available = 0;
  std::ifstream info("/proc/meminfo");
  std::string line;
  while (std::getline(info, line)) {
    unsigned long long kib = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %llu kB", &kib) == 1) {
      available = kib * 1024;
    }
  }
  std::string folder = cgroup_folder();
  for (const std::string& place : {folder, std::string("/sys/fs/cgroup")}) {
    uint64_t limit = place.empty() ? 0 : read_number(place + "/memory.max");
    if (limit > 0) {
      // Pages of files count as used, but give way.
      uint64_t used = read_number(place + "/memory.current");
      std::ifstream stat(place + "/memory.stat");
      std::string key;
      uint64_t value = 0, file_pages = 0;
      while (stat >> key >> value) {
        file_pages +=
            key == "inactive_file" || key == "active_file" ? value : 0;
      }
      used -= std::min(used, file_pages);
      uint64_t left = limit - std::min(limit, used);
      available = available == 0 ? left : std::min(available, left);
    }
  }
  return available;
}

}  // namespace mlxcel
