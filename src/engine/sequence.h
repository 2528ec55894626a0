// What the engine knows of a sequence while it lasts.
#pragma once

#include "engine/engine.h"

#include <algorithm>
#include <exception>

namespace mlxcel {

struct Engine::Sequence {
  int64_t id;
  SequenceOptions options;
  Sampler sampler;
  std::vector<int32_t> tokens;  // prompt, then what was generated
  int64_t num_prompt;    // tokens that are read with the prefill arithmetic
  int64_t computed = 0;  // positions whose keys and values are in the cache
  int64_t cached = 0;    // of these, taken from the prefix cache
  SequenceState state = SequenceState::waiting;
  FinishReason finish = FinishReason::none;
  std::exception_ptr failure;

  // Of context shifts: the tokens that they dropped, and what had been
  // generated before the last one.
  int64_t shifted = 0;
  int64_t generated_before = 0;
  int64_t original_prompt = 0;  // num_prompt before the first

  // One a block of positions; the first `dropped` are out of every layer's
  // window and no longer owned.
  std::vector<int32_t> blocks;
  int64_t dropped = 0;
  // While preempted: the content of the owned blocks, which are given back.
  bool swapped_out = false;
  std::vector<std::byte> swapped;
  int32_t state_slot = -1;  // of recurrent state; kept while preempted

  // Prompt positions after which a recurrent state is worth keeping, ascending.
  std::vector<int64_t> snapshots;
  int64_t rows = 0;  // of the step that is being built

  std::string cache_key;
  int64_t inserted = 0;  // positions handed to the prefix cache so far
  // The sequence whose prompt begins like this one's, and for how long: a
  // waiting sequence lets it go first.
  int64_t leader = -1;
  int64_t shared_with_leader = 0;

  Sequence(int64_t sequence_id, SequenceOptions given)
      : id(sequence_id),
        options(std::move(given)),
        sampler(options.sampling),
        tokens(std::move(options.prompt)),
        num_prompt(int64_t(tokens.size())) {}

  int64_t num_generated() const {
    return generated_before + int64_t(tokens.size()) - num_prompt;
  }
  bool running() const {
    return state == SequenceState::running;
  }
  bool in_prompt() const {
    return computed < num_prompt;
  }
  bool caches() const {
    return options.use_cache && !options.all_prompt_logits;
  }
  // Where messages end, as the end tokens in the prompt tell, and before the
  // last token, which is always computed again. Few: a state is large.
  void mark_snapshots() {
    constexpr size_t kBorders = 4;
    snapshots.clear();
    for (int64_t i = 0; i + 1 < num_prompt; ++i) {
      if (std::find(
              options.eos.begin(), options.eos.end(), tokens[size_t(i)]) !=
          options.eos.end()) {
        snapshots.push_back(i + 1);
      }
    }
    if (snapshots.size() > kBorders) {
      // The first, which conversations share, and the latest.
      snapshots.erase(
          snapshots.begin() + 1, snapshots.end() - ptrdiff_t(kBorders - 1));
    }
    if (num_prompt > 1 &&
        (snapshots.empty() || snapshots.back() != num_prompt - 1)) {
      snapshots.push_back(num_prompt - 1);
    }
  }
  // The next of these that is not computed yet, else the prompt's end.
  int64_t next_border() const {
    auto next = std::upper_bound(snapshots.begin(), snapshots.end(), computed);
    return next == snapshots.end() ? num_prompt : *next;
  }
  int64_t owned_blocks() const {
    return int64_t(blocks.size()) - dropped;
  }
};

// A token to draw: the row of logits for it, then what was drawn.
struct Engine::Drawing {
  Sequence* sequence = nullptr;
  std::span<float> logits;
  int32_t token = -1;
  bool complete = false;  // the constraint allows nothing more
};

}  // namespace mlxcel
