// Which experts of a mixture the rows of a step use, and with what shares.
#pragma once

#include "ops/cpu/context.h"

#include <cstdint>
#include <vector>

namespace mlxcel::cpu {

// The experts of every row: entry row * per_token + i is its i-th best. Numbers
// from the count of experts on are identity experts.
struct Routes {
  int per_token = 0;
  std::vector<int> experts;
  std::vector<float> shares;
};

// logits: [rows, experts + identity experts]
Routes route(const Tensor& logits, const MoeWeights& weights);

// The rows of one expert, prompt rows first. Their places in the buffers that
// all experts share follow each other.
struct Group {
  int expert = 0;
  int first = 0;  // place of the first row
  int prompt_rows = 0;
  std::vector<int32_t> rows;  // of the step
};

// Groups by expert, of those below `experts`, and the place of each entry of
// the routes; -1 for identity experts.
std::vector<Group> group_rows(
    const Routes& routes,
    int experts,
    int prompt_rows,
    std::vector<int>& places);

}  // namespace mlxcel::cpu
