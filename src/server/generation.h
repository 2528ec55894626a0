// What the service is asked for, and what it answers piece by piece.
#pragma once

#include "engine/engine.h"
#include "engine/generate.h"
#include "server/adapters.h"
#include "text/chat_output.h"
#include "text/constraint.h"

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace mlxcel::server {

// How long an answer may think.
struct ThoughtBudget {
  int64_t tokens = -1;  // -1: as long as it likes
  Marks marks;          // of a thought
  bool begun = false;   // the prompt ends inside one
};

struct GenerationRequest {
  std::vector<int32_t> prompt;
  int64_t max_tokens = -1;  // -1: until the context is full
  SamplingParams sampling;
  std::vector<std::string> stops;
  AdapterChoice adapters;
  bool ignore_eos = false;
  int64_t keep = 0;  // prompt tokens that a context shift leaves; -1: all
  bool cache_prompt = true;
  bool skip_special = true;           // leave special tokens out of the text
  std::vector<int32_t> kept_special;  // but not these
  // Report each piece; else only the whole at the end.
  bool stream = false;
  // Alternatives beside the log-probability of each token; -1: neither.
  int logprobs = -1;
  bool prompt_logprobs = false;  // of the prompt's tokens too
  // What the answer has to look like; null: anything.
  std::shared_ptr<const Grammar> grammar;
  ThoughtBudget thoughts;
};

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;  // natural, of the model's own distribution
  std::vector<std::pair<int32_t, float>> top;  // the best first
};

struct GenerationEnd {
  StopKind stop = StopKind::eos;
  std::string stopping_word;  // with StopKind::stop_string
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;    // of the prompt
  int64_t shifted_tokens = 0;   // dropped by context shifts
  double queue_seconds = 0;     // until it began to run
  double prompt_seconds = 0;    // from there to the first token
  double decode_seconds = 0;    // from there to the end
  std::vector<int32_t> tokens;  // all that were drawn
  std::exception_ptr failure;   // not null: nothing else counts
};

// A part of the answer. The texts of all parts join to the whole.
struct GenerationPart {
  size_t index = 0;  // of the request among those submitted together
  int slot = -1;     // where it runs
  std::string text;
  std::vector<int32_t> tokens;  // since the last part
  std::vector<TokenLogprob> logprobs;
  // Of the prompt's tokens from the second one on, all in the first part.
  std::vector<TokenLogprob> prompt_logprobs;
  std::optional<GenerationEnd> end;  // set in the last part
};

// Called on the engine's thread; must return at once.
using PartSink = std::function<void(GenerationPart part)>;

// Ends the generation at the next step, from any thread.
class GenerationHandle {
 public:
  void cancel() {
    cancelled_.store(true, std::memory_order_relaxed);
  }
  bool cancelled() const {
    return cancelled_.load(std::memory_order_relaxed);
  }

 private:
  std::atomic<bool> cancelled_{false};
};

}  // namespace mlxcel::server
