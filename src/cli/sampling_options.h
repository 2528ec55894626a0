// The options that say how the answer is drawn and where it ends.
#pragma once

#include "engine/dry_breakers.h"
#include "engine/sampler.h"
#include "text/tokenizer.h"

#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace mlxcel::cli {

struct SamplingOptions {
  SamplingParams params;
  std::optional<uint64_t> seed;  // unset: another one each run
  std::vector<std::string> dry_breakers = default_dry_breakers();
  std::vector<std::string> logit_bias;  // "ID=VALUE" or "ID+VALUE"/"ID-VALUE"
  std::vector<std::string> stops;
  int64_t max_tokens = -1;
};

void declare_sampling_options(CLI::App& app, SamplingOptions& options);

// Throws UsageError for values that make no sense, before a model is loaded.
void check_sampling_options(const SamplingOptions& options);

// Complete and checked parameters; the tokenizer is needed for DRY's breakers.
SamplingParams sampling_params(
    const SamplingOptions& options, const Tokenizer& tokenizer);

}  // namespace mlxcel::cli
