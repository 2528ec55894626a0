// An adapter folder as it lies on disk: config and low-rank pairs, checked as
// far as that is possible without a base model.
#pragma once

#include "adapters/config.h"
#include "io/weight_map.h"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace mlxcel {

// The two halves stored as <stem>.lora_a and <stem>.lora_b: float matrices, of
// any shapes yet. Still mapped, in the file's own dtype.
struct AdapterPair {
  std::string stem;
  WeightTensor a, b;
};

struct Adapter {
  std::filesystem::path folder;
  std::filesystem::path file;  // the safetensors file that was read
  AdapterConfig config;
  std::vector<AdapterPair> pairs;  // sorted by stem, at least one
  // Lower-case hex SHA-256 of the factor and of every pair's name, dtype, shape
  // and bytes: equal for equal content, wherever it lies.
  std::string digest;

  std::string task_name() const;  // the config's, else the folder's name
};

// The file that an adapter's tensors are read from; none: the folder has none.
std::optional<std::filesystem::path> find_adapter_file(
    const std::filesystem::path& folder);

// Reads adapters.safetensors, else adapter_model.safetensors. Throws
// AdapterError: no such folder or file, a key that does not end in .lora_a or
// .lora_b (PEFT's spelling is pointed to convert-adapter), a missing half, a
// tensor that is not a non-empty float matrix, or no pair at all.
Adapter read_adapter(const std::filesystem::path& folder);
// The same from the config and the tensors' headers: without the digest, so
// that no tensor is read.
Adapter read_adapter_headers(const std::filesystem::path& folder);

}  // namespace mlxcel
