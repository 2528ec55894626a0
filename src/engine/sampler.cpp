#include "engine/sampler.h"

#include "core/error.h"
#include "engine/random.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace mlxcel {

namespace {

void require(
    bool good, std::string_view name, double value, std::string_view range) {
  if (!good) {
    throw UsageError(
        cat("invalid ", name),
        cat(value, " is outside its range"),
        cat("give ", name, " ", range));
  }
}

bool finite_at_least(float value, float least) {
  return std::isfinite(value) && value >= least;
}

}  // namespace

void check(const SamplingParams& p) {
  require(
      finite_at_least(p.temperature, 0),
      "temperature",
      double(p.temperature),
      "a number from 0 up");
  require(p.top_k >= 0, "top-k", p.top_k, "an integer from 0 (off) up");
  require(
      p.top_p > 0 && p.top_p <= 1,
      "top-p",
      double(p.top_p),
      "a number above 0, up to 1 (off)");
  require(
      p.min_p >= 0 && p.min_p <= 1,
      "min-p",
      double(p.min_p),
      "a number from 0 (off) to 1");
  require(
      std::isfinite(p.repetition_penalty) && p.repetition_penalty > 0,
      "repetition penalty",
      double(p.repetition_penalty),
      "a number above 0 (1 is off)");
  require(
      std::isfinite(p.presence_penalty),
      "presence penalty",
      double(p.presence_penalty),
      "a finite number (0 is off)");
  require(
      std::isfinite(p.frequency_penalty),
      "frequency penalty",
      double(p.frequency_penalty),
      "a finite number (0 is off)");
  require(
      p.penalty_last_n >= -1,
      "repeat-last-n",
      p.penalty_last_n,
      "-1 (all tokens) or a number of tokens");
  require(
      finite_at_least(p.dry_multiplier, 0),
      "dry-multiplier",
      double(p.dry_multiplier),
      "a number from 0 (off) up");
  require(
      finite_at_least(p.dry_base, 1),
      "dry-base",
      double(p.dry_base),
      "a number from 1 up");
  require(
      p.dry_allowed_length >= 0,
      "dry-allowed-length",
      p.dry_allowed_length,
      "a number of tokens");
  require(
      p.dry_last_n >= -1,
      "dry-penalty-last-n",
      p.dry_last_n,
      "0 or -1 (all tokens) or a number of tokens");
  require(
      p.xtc_probability >= 0 && p.xtc_probability <= 1,
      "xtc-probability",
      double(p.xtc_probability),
      "a number from 0 (off) to 1");
  require(
      p.xtc_threshold >= 0 && p.xtc_threshold <= 1,
      "xtc-threshold",
      double(p.xtc_threshold),
      "a number from 0 to 1");
  for (const auto& [token, bias] : p.logit_bias) {
    require(
        token >= 0 && !std::isnan(bias) &&
            bias < std::numeric_limits<float>::infinity(),
        "logit bias",
        double(bias),
        "a number for a token id from 0 up");
  }
}

Sampler::Sampler(SamplingParams params) : params_(std::move(params)) {
  check(params_);
}

int32_t Sampler::sample(
    std::span<float> logits, std::span<const int32_t> history, uint64_t index) {
  for (const auto& [token, bias] : params_.logit_bias) {
    if (size_t(token) >= logits.size()) {
      throw ShapeError(
          "logit bias outside the vocabulary",
          cat("token ", token, ", vocabulary ", logits.size()),
          "use token ids of this model");
    }
    logits[size_t(token)] += bias;
  }
  penalize(logits, history);
  if (params_.dry_multiplier > 0) {
    apply_dry(logits, history);
  }

  int32_t best = argmax(logits);
  float max = logits[size_t(best)];
  if (!std::isfinite(max)) {
    bool finite = std::none_of(logits.begin(), logits.end(), [](float logit) {
      return std::isnan(logit) || logit > 0;
    });
    if (finite) {  // but for those that the request rules out
      throw UsageError(
          "no token can be chosen",
          "biases and rules of the request exclude every token",
          "leave out some of them");
    }
    throw Error(
        "no token can be chosen",
        "the model's logits hold no finite maximum",
        "check the checkpoint, adapters and recipe for damaged or huge "
        "values, or try --dtype f32");
  }
  if (params_.temperature == 0 || params_.top_k == 1) {
    return best;
  }

  std::array<double, 2> random = uniform_pair(params_.seed, index);
  bool filtered = true;
  if (params_.top_k > 0 && size_t(params_.top_k) < logits.size()) {
    take_top_k(logits, size_t(params_.top_k));
  } else if (
      params_.top_p < 1 || params_.min_p > 0 || params_.xtc_probability > 0) {
    take_likely(logits, max);
  } else {
    filtered = false;
  }
  if (!filtered) {
    weights_.resize(logits.size());
    // The reciprocal of less than the least normal float would be infinite.
    float scale =
        1 / std::max(params_.temperature, std::numeric_limits<float>::min());
    double sum = exp_shifted(logits, max, scale, weights_.data());
    double left = random[0] * sum;
    for (size_t i = 0; i < weights_.size(); ++i) {
      left -= double(weights_[i]);
      if (left < 0 && logits[i] > -std::numeric_limits<float>::infinity()) {
        return int32_t(i);
      }
    }
    return best;
  }

  cut_top_p();
  cut_min_p();
  if (params_.xtc_probability > 0) {
    cut_xtc(random[1]);
  }
  double sum = 0;
  weights_.resize(candidates_.size());
  float top = candidates_.front().logit;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    weights_[i] = std::exp((candidates_[i].logit - top) / params_.temperature);
    sum += double(weights_[i]);
  }
  double left = random[0] * sum;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    left -= double(weights_[i]);
    if (left < 0) {
      return candidates_[i].token;
    }
  }
  return candidates_.back().token;
}

void Sampler::penalize(
    std::span<float> logits, std::span<const int32_t> history) {
  if ((params_.repetition_penalty == 1 && params_.presence_penalty == 0 &&
       params_.frequency_penalty == 0) ||
      params_.penalty_last_n == 0) {
    return;
  }
  if (params_.penalty_last_n > 0 &&
      history.size() > size_t(params_.penalty_last_n)) {
    history = history.last(size_t(params_.penalty_last_n));
  }
  tokens_.assign(history.begin(), history.end());
  std::sort(tokens_.begin(), tokens_.end());
  for (size_t i = 0; i < tokens_.size();) {
    size_t end = i;
    while (end < tokens_.size() && tokens_[end] == tokens_[i]) {
      ++end;
    }
    float& logit = logits[size_t(tokens_[i])];
    logit = logit > 0 ? logit / params_.repetition_penalty
                      : logit * params_.repetition_penalty;
    logit -= float(end - i) * params_.frequency_penalty;
    logit -= params_.presence_penalty;
    i = end;
  }
}

void Sampler::apply_dry(
    std::span<float> logits, std::span<const int32_t> history) {
  if (params_.dry_last_n > 0 && history.size() > size_t(params_.dry_last_n)) {
    history = history.last(size_t(params_.dry_last_n));
  }
  // The run that may be continued ends at the last token and begins after the
  // last breaker.
  size_t n = history.size();
  size_t limit = 0;
  while (limit < n && !std::binary_search(
                          params_.dry_breakers.begin(),
                          params_.dry_breakers.end(),
                          history[n - 1 - limit])) {
    ++limit;
  }
  if (limit < size_t(std::max(params_.dry_allowed_length, 1))) {
    return;
  }
  // Z-function of the reversed history: z[i] is the length of the run that ends
  // at token n - 1 - i and equals the run that ends at the last token.
  run_lengths_.assign(n, 0);
  auto reversed = [&](size_t i) { return history[n - 1 - i]; };
  for (size_t i = 1, left = 0, right = 0; i < n; ++i) {
    size_t z =
        i < right ? std::min(right - i, size_t(run_lengths_[i - left])) : 0;
    while (i + z < n && reversed(z) == reversed(i + z)) {
      ++z;
    }
    run_lengths_[i] = int32_t(z);
    if (i + z > right) {
      left = i;
      right = i + z;
    }
  }
  // The token after each earlier run, with the longest such run.
  tokens_.clear();
  for (size_t i = 1; i < n; ++i) {
    size_t length = std::min(size_t(run_lengths_[i]), limit);
    run_lengths_[i] = int32_t(length);
    if (length > 0 && length >= size_t(params_.dry_allowed_length)) {
      tokens_.push_back(int32_t(i));
    }
  }
  std::sort(tokens_.begin(), tokens_.end(), [&](int32_t a, int32_t b) {
    int32_t next_a = reversed(size_t(a) - 1), next_b = reversed(size_t(b) - 1);
    return next_a != next_b ? next_a < next_b
                            : run_lengths_[size_t(a)] > run_lengths_[size_t(b)];
  });
  for (size_t i = 0; i < tokens_.size(); ++i) {
    int32_t next = reversed(size_t(tokens_[i]) - 1);
    if (i > 0 && reversed(size_t(tokens_[i - 1]) - 1) == next) {
      continue;
    }
    // The power is bounded, so that a long run never becomes infinity.
    double penalty =
        double(params_.dry_multiplier) *
        std::pow(
            double(params_.dry_base),
            double(
                run_lengths_[size_t(tokens_[i])] - params_.dry_allowed_length));
    logits[size_t(next)] -= float(std::min(penalty, 1e30));
  }
}

void Sampler::take_top_k(std::span<const float> logits, size_t k) {
  take_best(logits, k, candidates_);
  total_ = 0;
  for (const Candidate& c : candidates_) {
    total_ += double(std::exp(c.logit - candidates_.front().logit));
  }
}

void Sampler::take_likely(std::span<const float> logits, float max) {
  // A token is out for certain when it is below min-p's floor, or when all
  // tokens of its probability or less together miss the share top-p leaves out.
  float floor = max + std::log(params_.min_p);  // -inf without min-p
  if (params_.top_p < 1) {
    weights_.resize(logits.size());
    total_ = exp_shifted(logits, max, 1, weights_.data());
    double least =
        (1 - double(params_.top_p)) * total_ / double(logits.size()) * 0.999;
    floor = std::max(floor, max + float(std::log(least)));
  }
  candidates_.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] >= floor && logits[i] > -std::numeric_limits<float>::max()) {
      candidates_.push_back({logits[i], int32_t(i)});
    }
  }
  std::sort(candidates_.begin(), candidates_.end(), is_better);
}

void Sampler::cut_top_p() {
  if (params_.top_p >= 1) {
    return;
  }
  float top = candidates_.front().logit;
  double share = 0;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    share += double(std::exp(candidates_[i].logit - top)) / total_;
    if (share >= double(params_.top_p)) {
      candidates_.resize(i + 1);
      return;
    }
  }
}

void Sampler::cut_min_p() {
  if (params_.min_p <= 0) {
    return;
  }
  float floor = candidates_.front().logit + std::log(params_.min_p);
  size_t keep = 1;
  while (keep < candidates_.size() && candidates_[keep].logit >= floor) {
    ++keep;
  }
  candidates_.resize(keep);
}

void Sampler::cut_xtc(double chance) {
  if (chance >= double(params_.xtc_probability)) {
    return;
  }
  float top = candidates_.front().logit;
  double sum = 0;
  for (const Candidate& c : candidates_) {
    sum += double(std::exp(c.logit - top));
  }
  size_t reach = 0;
  while (reach < candidates_.size() &&
         double(std::exp(candidates_[reach].logit - top)) / sum >=
             double(params_.xtc_threshold)) {
    ++reach;
  }
  if (reach > 1) {
    candidates_.erase(
        candidates_.begin(), candidates_.begin() + ptrdiff_t(reach) - 1);
  }
}

}  // namespace mlxcel
