// One forward pass over rows of many sequences: prompt chunks and generated
// tokens together.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace mlxcel {

// Consecutive rows that belong to one sequence.
struct Segment {
  int first_row = 0;
  int num_rows = 0;
  int64_t position = 0;  // absolute position of the first row
  // Prompt rows use the prefill arithmetic, even a single one; generated rows
  // use the decode arithmetic. So a row has the same bits alone and in a batch.
  bool prompt = true;
  // Length that picks between the factor sets of a longrope table: the whole
  // prompt's for prompt rows, position + 1 for generated rows.
  int64_t rope_length = 0;
  // KV blocks of the sequence in order; covers [0, position + num_rows).
  std::span<const int32_t> blocks;
  // The sequence's slot of recurrent state; -1: the model keeps none.
  int32_t state = -1;
  // Run-time scale by adapter id (the adapter's own factor is in its terms).
  // Empty or zero entries mean the base weights, bit for bit.
  std::span<const float> adapter_scales;
};

struct Step {
  std::vector<int32_t> tokens;    // one a row
  std::vector<Segment> segments;  // prompt segments first, rows in order
  int num_prompt_rows = 0;        // rows [0, num_prompt_rows) are prompt rows
  std::vector<int32_t> output_rows;  // rows whose logits are wanted, ascending

  int num_rows() const {
    return int(tokens.size());
  }
};

}  // namespace mlxcel
