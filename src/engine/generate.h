// One answer from one prompt, piece by piece: what the command line uses.
#pragma once

#include "engine/engine.h"
#include "engine/stop_strings.h"
#include "text/tokenizer.h"

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace mlxcel {

struct GenerateRequest {
  SequenceOptions sequence;
  std::vector<std::string> stops;
  bool skip_special = true;  // leave special tokens out of the text
  // Called with each piece of text; the pieces join to the whole answer.
  std::function<void(std::string_view piece)> on_text;
  const std::atomic<bool>* cancel = nullptr;  // checked before each step
};

enum class StopKind : uint8_t { eos, length, stop_string, cancelled };

struct GenerateResult {
  StopKind stop = StopKind::eos;
  std::string text;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;     // of the prompt, taken from the cache
  int64_t generated_tokens = 0;  // an end token included
  double prompt_seconds = 0;     // until the first token was drawn
  double decode_seconds = 0;     // from there on
};

// Throws Error when memory for the KV cache ran out.
GenerateResult generate(
    Engine& engine, const Tokenizer& tokenizer, GenerateRequest request);

}  // namespace mlxcel
