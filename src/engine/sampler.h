// Picks the next token of one sequence from its logits.
//
// The steps run in this order, the one of llama-server:
//   logit bias, repetition / presence / frequency penalties, DRY, top-k, top-p,
//   min-p, XTC, temperature, draw.
// Top-p, min-p and XTC look at the distribution before the temperature, as
// mlx-lm's do. Temperature 0 takes the best token after the penalties; ties go
// to the lowest id. The draw uses `uniform_pair(seed, index)`, so a seed gives
// the same text alone and in any batch.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace mlxcel {

struct SamplingParams {
  float temperature = 0;
  int top_k = 0;    // 0: off
  float top_p = 1;  // 1: off
  float min_p = 0;  // 0: off; share of the best token's probability
  uint64_t seed = 0;

  // Over the last `penalty_last_n` tokens of prompt and answer (-1: all).
  float repetition_penalty = 1;  // divides positive, multiplies negative logits
  float presence_penalty = 0;
  float frequency_penalty = 0;
  int penalty_last_n = 64;

  // DRY: a token that would continue a repeated run of n tokens loses
  // multiplier * base^(n - allowed_length).
  float dry_multiplier = 0;  // 0: off
  float dry_base = 1.75f;
  int dry_allowed_length = 2;
  int dry_last_n = 0;  // 0 or -1: all tokens
  std::vector<int32_t>
      dry_breakers;  // sorted; a run never crosses one of these

  // XTC: with this chance drops all but the least of the tokens whose
  // probability reaches the threshold.
  float xtc_probability = 0;
  float xtc_threshold = 0.1f;

  std::vector<std::pair<int32_t, float>> logit_bias;  // -inf bans the token
};

// Throws UsageError that names the parameter, its value and its range.
void check(const SamplingParams& params);

struct Candidate {
  float logit;
  int32_t token;
};

// Ties go to the lowest id.
inline bool is_better(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

class Sampler {
 public:
  explicit Sampler(SamplingParams params);

  // `logits` [vocab] are changed in place. `history`: prompt and answer so far.
  // `index` counts the sequence's draws from 0. Throws Error when no logit is
  // finite, and ShapeError when a bias names a token outside the vocabulary.
  int32_t sample(
      std::span<float> logits,
      std::span<const int32_t> history,
      uint64_t index);

  const SamplingParams& params() const {
    return params_;
  }

 private:
  void penalize(std::span<float> logits, std::span<const int32_t> history);
  void apply_dry(std::span<float> logits, std::span<const int32_t> history);
  void take_top_k(std::span<const float> logits, size_t k);
  void take_likely(std::span<const float> logits, float max);
  void cut_top_p();
  void cut_min_p();
  void cut_xtc(double chance);

  SamplingParams params_;
  // Working space, kept so that a token allocates nothing.
  std::vector<Candidate> candidates_;  // sorted, best first, once filtered
  std::vector<float> weights_;
  double total_ = 0;  // what the shares of top-p are taken of
  std::vector<int32_t> tokens_;
  std::vector<int32_t> run_lengths_;
};

// The first position of the greatest value; 0 for an empty span.
int32_t argmax(std::span<const float> values);
float max_value(std::span<const float> values);

// The `k` greatest above -infinity, best first (fewer if there are not so
// many); of equal ones those of lower ids.
void take_best(
    std::span<const float> logits, size_t k, std::vector<Candidate>& out);

// out[i] = exp(t), t = (x[i] - shift) * scale, for t <= 0, within 2e-7 + |t| *
// 2^-23 relative: t is rounded twice to f32. A t below -87 counts as -87, which
// gives 1.6e-38 where it should be less. Returns the sum, added in a fixed
// order.
double exp_shifted(
    std::span<const float> x, float shift, float scale, float* out);

}  // namespace mlxcel
