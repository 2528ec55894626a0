// What config.json and the tensor headers say about a checkpoint; no weight is
// read.
#pragma once

#include "engine/memory.h"
#include "io/checkpoint.h"
#include "loading/detect.h"

#include <filesystem>

namespace mlxcel::cli {

struct CheckpointFacts {
  std::filesystem::path folder;
  Config config;
  Detection detection;
  const Family* family = nullptr;
  DecoderSpec spec;
  WeightMap weights;  // mapped, untouched
  uint64_t weight_bytes = 0;
  DType activation_dtype = DType::f16;
  int64_t max_positions = 0;  // 0: not stated
};

// Throws ConfigError or CheckpointError as loading would.
CheckpointFacts read_checkpoint_facts(const std::filesystem::path& model);

// What an estimate is multiplied by before it is compared with the free memory:
// MLXCEL_HEADROOM_FACTOR, or 1.2. Throws UsageError for what is no positive
// number.
double headroom_factor();

}  // namespace mlxcel::cli
