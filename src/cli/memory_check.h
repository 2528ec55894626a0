// The memory estimates of `generate`, `run` and `serve`, and the check before
// loading.
#pragma once

#include "cli/model_options.h"
#include "server/server.h"

#include <cstdint>

namespace mlxcel::cli {

// Positions to count for a prompt that is not known yet.
constexpr int64_t kPromptAllowance = 512;

// Prints the estimate for a prompt of this length and this limit on the answer
// (-1: none).
void print_memory_estimate(
    const ModelOptions& options, int64_t prompt_tokens, int64_t max_tokens);

// Prints the estimate for a server with these settings, its KV cache full.
void print_server_memory_estimate(
    const ModelOptions& options, const server::CapacityOptions& capacity);

// Throws Error when the machine has too little memory for the model.
void check_memory(const ModelOptions& options, int64_t max_tokens);

}  // namespace mlxcel::cli
