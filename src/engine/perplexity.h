// Perplexity of a token sequence, and how far two models' predictions are
// apart.
#pragma once

#include "engine/engine.h"
#include "io/output_target.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace mlxcel {

// -log p(token) in nats for logits [vocab]; sums in f64.
double negative_log_likelihood(std::span<const float> logits, int32_t token);

struct Divergence {
  double kl = 0;         // KL(p || q) in nats
  bool same_top = true;  // both put the same token first
};

// p and q are the distributions of two logit rows [vocab].
Divergence divergence(
    std::span<const float> base_logits, std::span<const float> logits);

// Runs `tokens` through the engine in windows of `context` tokens, each without
// what came before, and calls with the logits that predict position i, for
// every i that has a token before it in its window. -1 as context: one window.
void for_each_prediction(
    Engine& engine,
    std::span<const int32_t> tokens,
    int64_t context,
    const std::vector<float>& adapter_scales,
    const std::function<void(int64_t i, std::span<const float> logits)>& use);

// Predictions of one model over a text, kept in a file in f32. A safetensors
// file with `tokens` I32 [n], `positions` I32 [m] (the predicted ones) and
// `logits` F32 [m, vocab].
class LogitsWriter {
 public:
  // Throws CheckpointError when the file cannot be created.
  LogitsWriter(
      const std::filesystem::path& path,
      std::span<const int32_t> tokens,
      std::vector<int32_t> positions,
      int64_t vocab);
  void add(std::span<const float> logits);  // in the order of the positions
  void finish();  // moves the complete file to its name

 private:
  std::string path_;
  PendingFile file_;
  int64_t rows_left_;
};

// The positions that for_each_prediction visits.
std::vector<int32_t> predicted_positions(int64_t num_tokens, int64_t context);

}  // namespace mlxcel
