// What a model needs in memory, from its spec and its tensors' sizes alone.
#pragma once

#include "models/spec.h"
#include "ops/kv_cache.h"

#include <cstdint>

namespace mlxcel {

struct MemoryEstimate {
  uint64_t weights = 0;      // the tensors, mapped or read
  uint64_t kv_cache = 0;     // whole blocks for all sequences
  uint64_t activations = 0;  // of the largest step, with its logits
  uint64_t headroom = 0;     // program, tokenizer and allocator
  uint64_t total() const {
    return weights + kv_cache + activations + headroom;
  }
};

KvCacheSpec kv_cache_spec_of(const DecoderSpec& spec, DType dtype);

struct MemoryUse {
  uint64_t weight_bytes = 0;
  DType activation_dtype = DType::f16;
  int64_t context = 0;  // positions of each sequence
  int batch = 1;        // sequences
  int prefill_chunk = 512;
  // Rows of logits a step asks for at most.
  int output_rows = 1;
};

MemoryEstimate estimate_memory(const DecoderSpec& spec, const MemoryUse& use);

// What the process may still take: free memory of the machine, or what its
// cgroup leaves, whichever is less. 0 when unknown.
uint64_t available_memory();

}  // namespace mlxcel
