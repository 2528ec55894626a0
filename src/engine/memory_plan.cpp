// Which sequences have a place in the KV cache: admission, sharing with the
// prefix cache, and preemption. What a preempted sequence computed goes to host
// memory and comes back; nothing is computed twice.
#include "engine/sequence.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace mlxcel {

namespace {

int64_t whole_blocks(int64_t positions) {
  return positions / kKvBlockSize * kKvBlockSize;
}

}  // namespace

void Engine::admit() {
  int running = num_running();
  for (auto& sequence : sequences_) {
    if (running >= options_.max_sequences) {
      return;
    }
    bool preempted = sequence->state == SequenceState::preempted;
    if (!preempted && sequence->state != SequenceState::waiting) {
      continue;
    }
    if (!preempted && waits_for_leader(*sequence)) {
      continue;
    }
    bool good = preempted ? resume(*sequence, running == 0)
                          : start(*sequence, running == 0);
    if (sequence->state == SequenceState::ended) {
      continue;  // it can never run
    }
    if (!good) {
      return;  // first come, first served: nothing overtakes it
    }
    ++running;
  }
}

// Room for the blocks and, beside running answers, for some growth of these.
bool Engine::has_room(int64_t blocks, bool alone) {
  if (blocks_.max_blocks() > 0 && !alone) {
    blocks +=
        int64_t(std::ceil(options_.admission_watermark * blocks_.max_blocks()));
  }
  while (blocks_.available() < blocks) {
    if (!prefix_cache_.reclaim()) {
      return false;
    }
  }
  return true;
}

// Blocks that so many more positions take, a copy of a shared one too.
int64_t Engine::new_blocks(const Sequence& sequence, int64_t rows) const {
  size_t first = size_t(sequence.computed / kKvBlockSize);
  bool copy = first < sequence.blocks.size() &&
              blocks_.references(sequence.blocks[first]) > 1;
  return blocks_for(sequence.computed + rows) -
         int64_t(sequence.blocks.size()) + int64_t(copy);
}

bool Engine::start(Sequence& sequence, bool alone) {
  if (blocks_.max_blocks() > 0 && traits_.window == 0 &&
      blocks_for(sequence.num_prompt) > blocks_.max_blocks()) {
    finish(sequence, FinishReason::no_memory, -1);
    return false;
  }
  // The last prompt token is always computed: its logits are needed.
  std::span<const int32_t> reusable =
      std::span(sequence.tokens).first(size_t(sequence.num_prompt - 1));
  int32_t state = -1;
  if (sequence.caches()) {
    PrefixCache::Match match = prefix_cache_.find(sequence.cache_key, reusable);
    state = match.state;
    sequence.computed = match.positions;
    sequence.blocks = std::move(match.blocks);
    while (sequence.dropped < int64_t(sequence.blocks.size()) &&
           sequence.blocks[size_t(sequence.dropped)] == kNoBlock) {
      sequence.blocks[size_t(sequence.dropped++)] = 0;  // no layer looks there
    }
  }
  // Before the cache may give the state up.
  sequence.state_slot =
      state < 0 ? states_.allocate() : states_.allocate_copy(state);
  // The whole prompt gets its blocks now, or as much as is looked at.
  int64_t rows = sequence.num_prompt - sequence.computed;
  if (traits_.window > 0) {
    rows = std::min(rows, traits_.window + options_.prefill_chunk);
  }
  while (!has_room(new_blocks(sequence, rows), alone) ||
         !ensure_blocks(sequence, rows)) {
    // Copies of what the cache shares with it must not end a sequence that
    // has all of the memory.
    if (!alone || !prefix_cache_.let_go_oldest()) {
      drop_blocks(sequence);
      sequence.computed = 0;
      return false;
    }
  }
  if (sequence.shifted == 0) {  // later on it finds what was its own
    sequence.cached = sequence.computed;
    if (sequence.caches()) {
      prefix_cache_.count_lookup(int64_t(reusable.size()), sequence.cached);
    }
  }
  sequence.inserted =
      states_.needed() ? sequence.computed : whole_blocks(sequence.computed);
  sequence.state = SequenceState::running;
  return true;
}

// Whether a running sequence is about to compute what this one needs as well.
bool Engine::waits_for_leader(Sequence& sequence) const {
  if (!sequence.caches() || !prefix_cache_.enabled()) {
    return false;
  }
  for (const auto& other : sequences_) {
    if (other->id == sequence.id) {
      return false;  // only those before it
    }
    if (!other->running() || !other->in_prompt() || !other->caches() ||
        other->cache_key != sequence.cache_key) {
      continue;
    }
    if (sequence.leader != other->id) {
      std::span<const int32_t> own =
          std::span(sequence.tokens).first(size_t(sequence.num_prompt - 1));
      std::span<const int32_t> theirs =
          std::span(other->tokens).first(size_t(other->num_prompt));
      int64_t shared =
          std::mismatch(own.begin(), own.end(), theirs.begin(), theirs.end())
              .first -
          own.begin();
      if (states_.needed()) {
        // As far as the other's last state before they part.
        auto next = std::upper_bound(
            other->snapshots.begin(), other->snapshots.end(), shared);
        shared = next == other->snapshots.begin() ? 0 : *std::prev(next);
      } else {
        shared = whole_blocks(shared);
      }
      sequence.leader = other->id;
      sequence.shared_with_leader = shared;
    }
    int64_t done =
        states_.needed() ? other->computed : whole_blocks(other->computed);
    if (sequence.shared_with_leader > done) {
      return true;
    }
  }
  return false;
}

bool Engine::ensure_blocks(Sequence& sequence, int64_t rows) {
  // The block that holds the first new position may be shared.
  size_t first = size_t(sequence.computed / kKvBlockSize);
  if (first < sequence.blocks.size()) {
    std::optional<int32_t> own = blocks_.make_writable(sequence.blocks[first]);
    if (!own) {
      return false;
    }
    sequence.blocks[first] = *own;
  }
  size_t needed = size_t(blocks_for(sequence.computed + rows));
  while (sequence.blocks.size() < needed) {
    std::optional<int32_t> block = blocks_.allocate();
    if (!block) {
      return false;
    }
    sequence.blocks.push_back(*block);
  }
  return true;
}

Engine::Sequence* Engine::victim(const Sequence& sequence) const {
  Sequence* chosen = nullptr;
  for (const auto& other : sequences_) {
    if (other->id <= sequence.id || !other->running()) {
      continue;
    }
    bool better = chosen == nullptr ||
                  options_.preemption == PreemptionPolicy::youngest_first ||
                  other->owned_blocks() > chosen->owned_blocks();
    chosen = better ? other.get() : chosen;
  }
  return chosen;
}

bool Engine::make_room(Sequence& sequence, int64_t rows) {
  while (!ensure_blocks(sequence, rows)) {
    if (Sequence* other = victim(sequence)) {
      preempt(*other);
    } else if (num_running() > 1) {
      preempt(sequence);
      return false;
    } else if (!prefix_cache_.let_go_oldest()) {
      finish(sequence, FinishReason::no_memory, -1);
      drop_blocks(sequence);
      return false;
    }
  }
  return true;
}

void Engine::preempt(Sequence& sequence) {
  size_t bytes = size_t(blocks_.block_bytes());
  sequence.swapped.resize(size_t(sequence.owned_blocks()) * bytes);
  std::byte* out = sequence.swapped.data();
  for (size_t i = size_t(sequence.dropped); i < sequence.blocks.size(); ++i) {
    blocks_.save(sequence.blocks[i], out);
    blocks_.release(sequence.blocks[i]);
    out += bytes;
  }
  sequence.swapped_out = true;
  sequence.state = SequenceState::preempted;
  ++stats_.preemptions;
}

bool Engine::resume(Sequence& sequence, bool alone) {
  int64_t next = sequence.in_prompt() ? 0 : 1;
  int64_t growth = std::max<int64_t>(
      0,
      blocks_for(sequence.computed + next) - int64_t(sequence.blocks.size()));
  if (!has_room(sequence.owned_blocks() + growth, alone)) {
    return false;
  }
  size_t bytes = size_t(blocks_.block_bytes());
  const std::byte* in = sequence.swapped.data();
  for (size_t i = size_t(sequence.dropped); i < sequence.blocks.size(); ++i) {
    sequence.blocks[i] = *blocks_.allocate();
    blocks_.load(sequence.blocks[i], in);
    in += bytes;
  }
  sequence.swapped = {};
  sequence.swapped_out = false;
  sequence.state = SequenceState::running;
  return true;
}

void Engine::drop_blocks(Sequence& sequence) {
  if (!sequence.swapped_out) {
    for (size_t i = size_t(sequence.dropped); i < sequence.blocks.size(); ++i) {
      blocks_.release(sequence.blocks[i]);
    }
  }
  sequence.blocks.clear();
  states_.release(std::exchange(sequence.state_slot, -1));
  sequence.swapped = {};
  sequence.swapped_out = false;
  sequence.dropped = 0;
}

void Engine::drop_unseen_blocks(Sequence& sequence) {
  if (traits_.window == 0) {
    return;
  }
  int64_t first_seen =
      std::max<int64_t>(0, sequence.computed - traits_.window + 1) /
      kKvBlockSize;
  for (; sequence.dropped < first_seen; ++sequence.dropped) {
    blocks_.release(sequence.blocks[size_t(sequence.dropped)]);
  }
}

void Engine::remember(Sequence& sequence, bool all) {
  if (!prefix_cache_.enabled() || !sequence.caches() ||
      sequence.blocks.empty() || sequence.swapped_out ||
      sequence.finish == FinishReason::failed) {
    return;
  }
  int64_t end = options_.reuse_generated
                    ? sequence.computed
                    : std::min(sequence.computed, sequence.num_prompt);
  int64_t switch_length = traits_.rope_switch_length;
  if (switch_length > 0 && sequence.num_prompt <= switch_length) {
    end = std::min(end, switch_length);  // later positions turn otherwise
  }
  int32_t state = -1;
  if (states_.needed()) {
    // Only where the state stands at the end of what is handed over.
    bool border = std::binary_search(
        sequence.snapshots.begin(), sequence.snapshots.end(), end);
    if (end != sequence.computed || end <= sequence.inserted ||
        !(all || border)) {
      return;
    }
    state = all ? std::exchange(sequence.state_slot, -1)
                : states_.allocate_copy(sequence.state_slot);
  } else if (!all) {
    end = whole_blocks(end);
  }
  if (end <= sequence.inserted) {
    return;
  }
  std::vector<int32_t> blocks(
      sequence.blocks.begin(),
      sequence.blocks.begin() + ptrdiff_t(blocks_for(end)));
  std::fill_n(
      blocks.begin(),
      std::min<int64_t>(sequence.dropped, int64_t(blocks.size())),
      kNoBlock);
  prefix_cache_.insert(
      sequence.cache_key,
      std::span(sequence.tokens).first(size_t(end)),
      blocks,
      state);
  sequence.inserted = end;
}

}  // namespace mlxcel
