// The memory estimate of `generate` and `run`, and the check before loading.
#pragma once

#include "cli/model_options.h"

#include <cstdint>

namespace mlxcel::cli {

// Prints the estimate for a run with this limit on the answer.
void print_memory_estimate(const ModelOptions& options, int64_t max_tokens);

// Throws Error when the machine has too little memory for the model.
void check_memory(const ModelOptions& options, int64_t max_tokens);

}  // namespace mlxcel::cli
