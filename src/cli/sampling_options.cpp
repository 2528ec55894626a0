#include "cli/sampling_options.h"

#include "core/error.h"
#include "engine/stop_strings.h"

#include <CLI/CLI.hpp>

#include <charconv>
#include <random>

namespace mlxcel::cli {

namespace {

// "15043=-inf", "15043+1.5", "15043-1"
std::pair<int32_t, float> parse_bias(const std::string& text) {
  int32_t token = 0;
  const char* end = text.data() + text.size();
  auto [rest, error] = std::from_chars(text.data(), end, token);
  float bias = 0;
  bool good = error == std::errc() && rest != end && token >= 0 &&
              (*rest == '=' || *rest == '+' || *rest == '-');
  if (good) {
    rest += *rest == '-' ? 0 : 1;
    auto [stop, bad] = std::from_chars(rest, end, bias);
    good = bad == std::errc() && stop == end;
  }
  if (!good) {
    throw UsageError(
        cat("wrong --logit-bias ", text),
        "it is no token id followed by = and a number",
        "write --logit-bias ID=VALUE, for example 15043=-inf");
  }
  return {token, bias};
}

// A longer number would be cut to the greatest one, which stands for -1.
const std::function<std::string(const std::string&)> seed_number =
    [](const std::string& text) -> std::string {
  uint64_t seed = 0;
  const char* end = text.data() + text.size();
  auto [stop, error] = std::from_chars(text.data(), end, seed);
  bool number = error == std::errc() && stop == end && ~seed != 0;
  return number || text == "-1"
             ? ""
             : cat("a seed is -1 or a whole number up to ", ~uint64_t(0) - 1);
};

}  // namespace

void declare_sampling_options(CLI::App& app, SamplingOptions& options) {
  auto add = [&app](const char* name, auto& value, const char* help) {
    return app.add_option(name, value, help)
        ->capture_default_str()
        ->group("Sampling");
  };
  SamplingParams& p = options.params;
  add("-t,--temp,--temperature", p.temperature, "0 takes the best token");
  add("--top-p", p.top_p, "Keep the best tokens up to this share; 1 is off");
  add("--top-k", p.top_k, "Keep this many tokens; 0 is off");
  add("--min-p",
      p.min_p,
      "Keep tokens with this share of the best one's probability; 0 is off");
  app.add_option(
         "--seed",
         options.seed,
         "Start of the random numbers; -1, the default, is another one each "
         "run")
      ->check(seed_number)
      ->group("Sampling");
  add("--repetition-penalty,--repeat-penalty",
      p.repetition_penalty,
      "Divides the logits of recent tokens; 1 is off");
  add("--presence-penalty", p.presence_penalty, "Taken off recent tokens once");
  add("--frequency-penalty",
      p.frequency_penalty,
      "Taken off recent tokens each time they occur");
  add("--repeat-last-n",
      p.penalty_last_n,
      "How many tokens these penalties look back at; -1 for all");
  add("--dry-multiplier",
      p.dry_multiplier,
      "Strength of the penalty on repeated runs (DRY); 0 is off");
  add("--dry-base", p.dry_base, "Its growth with the run's length");
  add("--dry-allowed-length",
      p.dry_allowed_length,
      "Runs up to this length go free");
  add("--dry-penalty-last-n",
      p.dry_last_n,
      "How many tokens DRY looks back at; 0 or -1 for all");
  app.add_option(
         "--dry-sequence-breaker",
         options.dry_breakers,
         "Text that a run never crosses; repeatable, replaces \\n : \" *")
      ->type_name("TEXT")
      ->type_size(1)
      ->allow_extra_args(false)
      ->group("Sampling");
  add("--xtc-probability",
      p.xtc_probability,
      "Chance to drop all but the least of the likely tokens; 0 is off");
  add("--xtc-threshold",
      p.xtc_threshold,
      "Probability from which XTC calls a token likely");
  app.add_option(
         "--logit-bias",
         options.logit_bias,
         "Added to a token's logit, -inf bans it; repeatable")
      ->type_name("ID=VALUE")
      ->type_size(1)
      ->allow_extra_args(false)
      ->group("Sampling");
  app.add_option(
         "-n,--max-tokens,--predict,--n-predict",
         options.max_tokens,
         "Most tokens of an answer; -1 until it ends or the context is full")
      ->capture_default_str()
      ->check(CLI::Range(int64_t(-1), int64_t(1) << 40));
  app.add_option(
         "--stop",
         options.stops,
         "Text that ends the answer, and is left out of it; repeatable")
      ->type_name("TEXT")
      ->type_size(1)
      ->allow_extra_args(false);
}

void check_sampling_options(const SamplingOptions& options) {
  check(options.params);
  for (const std::string& text : options.logit_bias) {
    parse_bias(text);
  }
  StopStrings valid(options.stops);
  check_dry_breakers(options.dry_breakers);
}

SamplingParams sampling_params(
    const SamplingOptions& options, const Tokenizer& tokenizer) {
  SamplingParams params = options.params;
  for (const std::string& text : options.logit_bias) {
    params.logit_bias.push_back(parse_bias(text));
  }
  // -1 arrives as the greatest number.
  if (options.seed && *options.seed != ~uint64_t(0)) {
    params.seed = *options.seed;
  } else if (params.temperature > 0) {
    std::random_device device;
    params.seed = uint64_t(device()) << 32 | device();
  }
  check(params);
  if (params.dry_multiplier > 0) {
    params.dry_breakers = TokenTexts(tokenizer).holding(options.dry_breakers);
  }
  return params;
}

}  // namespace mlxcel::cli
