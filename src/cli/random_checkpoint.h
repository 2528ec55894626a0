// Checkpoints of known shapes with random weights, for measurements.
#pragma once

#include <filesystem>
#include <string>

namespace mlxcel::cli {

// shape: one of random_shape_names(), or the path of a config.json. bits: 4 or
// 8 (affine, groups of 64) or 16 (bf16). Writes config.json and sharded
// safetensors into the folder, which must be empty or absent. Throws UsageError
// for what cannot be made, and ConfigError for a config.json that cannot be
// read.
void write_random_checkpoint(
    const std::filesystem::path& folder, const std::string& shape, int bits);

}  // namespace mlxcel::cli
