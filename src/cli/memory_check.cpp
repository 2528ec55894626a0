#include "cli/memory_check.h"

#include "adapters/adapter.h"
#include "cli/checkpoint_facts.h"
#include "cli/console.h"
#include "cli/model_store.h"
#include "io/safetensors.h"
#include "server/capacity.h"

#include <algorithm>
#include <optional>

namespace mlxcel::cli {

namespace {

namespace fs = std::filesystem;

// Positions that an answer without a limit is taken to need.
constexpr int64_t kOpenAnswer = 4096;

// Bytes of the base weights that fused adapters copy, and of the live ones.
uint64_t adapter_bytes(
    const ModelOptions& options, const CheckpointFacts& facts) {
  uint64_t bytes = 0;
  for (const AdapterRequest& adapter : options.adapters) {
    std::optional<fs::path> file = find_adapter_file(adapter.folder);
    if (!file) {
      continue;  // the loader refuses it with a message of its own
    }
    for (const TensorEntry& tensor : read_safetensors_header(*file).tensors) {
      size_t dot = tensor.name.rfind(".lora_a");
      if (!adapter.fuse && !options.lora_fuse) {
        bytes += tensor.end - tensor.begin;
      } else if (dot != std::string::npos) {
        const WeightTensor* base =
            facts.weights.find(tensor.name.substr(0, dot) + ".weight");
        bytes += base ? base->bytes : 0;
      }
    }
  }
  return bytes;
}

MemoryUse use_of(const ModelOptions& options, const CheckpointFacts& facts) {
  MemoryUse use;
  use.weight_bytes = facts.weight_bytes + adapter_bytes(options, facts);
  use.activation_dtype = options.dtype.empty()
                             ? facts.activation_dtype
                             : parse_activation_dtype(options.dtype);
  return use;
}

MemoryEstimate estimate(
    const ModelOptions& options, int64_t prompt_tokens, int64_t max_tokens) {
  CheckpointFacts facts = read_checkpoint_facts(find_model(options.model));
  MemoryUse use = use_of(options, facts);
  use.context = prompt_tokens + (max_tokens < 0 ? kOpenAnswer : max_tokens);
  // Prompts are read in chunks; generated tokens come one at a time.
  use.prefill_chunk = int(std::min<int64_t>(prompt_tokens, use.prefill_chunk));
  if (facts.max_positions > 0) {
    use.context = std::min(use.context, facts.max_positions);
  }
  return estimate_memory(facts.spec, use);
}

}  // namespace

namespace {

void print(const MemoryEstimate& e) {
  fmt::print(
      "Estimated memory: {} (weights {}, KV cache {}, activations {}, "
      "headroom {})\nAvailable memory: {}\n",
      format_bytes(double(e.total())),
      format_bytes(double(e.weights)),
      format_bytes(double(e.kv_cache)),
      format_bytes(double(e.activations)),
      format_bytes(double(e.headroom)),
      format_bytes(double(available_memory())));
}

}  // namespace

void print_memory_estimate(
    const ModelOptions& options, int64_t prompt_tokens, int64_t max_tokens) {
  print(estimate(options, prompt_tokens, max_tokens));
}

void print_server_memory_estimate(
    const ModelOptions& options, const server::CapacityOptions& capacity) {
  CheckpointFacts facts = read_checkpoint_facts(find_model(options.model));
  MemoryUse use = use_of(options, facts);
  const KvCacheSpec cache = kv_cache_spec_of(facts.spec, use.activation_dtype);
  server::Capacity shared =
      server::capacity_of(capacity, cache, facts.max_positions);
  use.context = shared.context;
  use.batch = use.output_rows = shared.slots;
  use.prefill_chunk = capacity.prefill_chunk;
  MemoryEstimate out = estimate_memory(facts.spec, use);
  // Of all sequences and of the prompt cache, which share the blocks.
  out.kv_cache =
      uint64_t(cache.bytes_per_block()) * uint64_t(shared.max_blocks) +
      uint64_t(cache.bytes_per_state()) * uint64_t(shared.slots);
  print(out);
}

void check_memory(const ModelOptions& options, int64_t max_tokens) {
  double factor = headroom_factor();
  uint64_t available = available_memory();
  fs::path folder = checkpoint_folder(find_model(options.model));
  // A folder far smaller than the free memory needs no closer look.
  uint64_t files = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    std::error_code error;
    uint64_t size = entry.is_regular_file(error) ? entry.file_size(error) : 0;
    files += error ? 0 : size;
  }
  if (available == 0 || files < available / 8) {
    return;
  }
  uint64_t needed = estimate(options, kPromptAllowance, max_tokens).total();
  if (double(needed) * factor > double(available)) {
    throw Error(
        "not enough memory",
        fmt::format(
            "the model needs about {} and {} times that should be free, but "
            "{} is",
            format_bytes(double(needed)),
            factor,
            format_bytes(double(available))),
        "free memory, take a smaller model or --max-tokens, or give "
        "--no-memory-check to try it");
  }
}

}  // namespace mlxcel::cli
