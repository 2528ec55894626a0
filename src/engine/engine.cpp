#include "engine/engine.h"

#include "core/error.h"
#include "engine/sequence.h"
#include "ops/host_work.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <limits>

namespace mlxcel {

namespace {

// Where nothing goes on from what was computed, nothing is kept.
PrefixCacheOptions cache_options(
    const EngineOptions& options, const ContextTraits& traits) {
  PrefixCacheOptions out = options.prefix_cache;
  out.bytes = traits.whole_sequence ? 0 : out.bytes;
  return out;
}

}  // namespace

Engine::Engine(Model& model, Backend& backend, const EngineOptions& options)
    : model_(&model),
      backend_(&backend),
      host_(dynamic_cast<HostWork*>(&backend)),
      options_(options),
      vocab_size_(model.vocab_size()),
      traits_(model.context_traits()),
      cache_(backend.make_kv_cache(model.kv_cache_spec())),
      blocks_(*cache_, options.max_blocks),
      states_(*cache_),
      prefix_cache_(
          blocks_, states_, cache_options(options, traits_), traits_.window) {
  assert(options.prefill_chunk > 0 && options.max_sequences > 0);
  blocks_.set_reclaimer([this] { return prefix_cache_.reclaim(); });
}

Engine::~Engine() = default;

void Engine::set_model(Model& model, Backend& backend) {
  model_ = &model;
  backend_ = &backend;
  host_ = dynamic_cast<HostWork*>(&backend);
}

Engine::Sequence& Engine::at(int64_t id) const {
  auto place = std::lower_bound(
      sequences_.begin(), sequences_.end(), id, [](const auto& s, int64_t key) {
        return s->id < key;
      });
  if (place == sequences_.end() || (*place)->id != id) {
    throw Error(
        cat("no sequence ", id),
        "it was never added, or it was released",
        "ask before release()");
  }
  return **place;
}

int64_t Engine::add(SequenceOptions options) {
  if (options.prompt.empty()) {
    throw TextError(
        "the prompt is empty",
        "it has no token, so there is nothing to continue",
        "give a prompt");
  }
  int64_t length = int64_t(options.prompt.size());
  if (options_.max_positions > 0 && length > options_.max_positions) {
    throw TextError(
        "the prompt is longer than the context",
        cat("it has ", length, " tokens, the context ", options_.max_positions),
        "shorten the prompt");
  }
  for (int32_t token : options.prompt) {
    if (token < 0 || token >= vocab_size_) {
      throw TextError(
          "token outside the vocabulary",
          cat("id ", token, ", the model has ", vocab_size_),
          "use the tokenizer that belongs to this model");
    }
  }
  auto sequence = std::make_unique<Sequence>(next_id_, std::move(options));
  key_by_length(*sequence);
  if (states_.needed()) {
    sequence->mark_snapshots();
  }
  sequences_.push_back(std::move(sequence));
  return next_id_++;
}

// Beyond that length positions turn otherwise.
void Engine::key_by_length(Sequence& sequence) const {
  sequence.cache_key = sequence.options.cache_key;
  if (traits_.rope_switch_length > 0 &&
      sequence.num_prompt > traits_.rope_switch_length) {
    sequence.cache_key += "|long";
  }
}

bool Engine::idle() const {
  return std::all_of(sequences_.begin(), sequences_.end(), [](auto& s) {
    return s->state == SequenceState::ended;
  });
}

int Engine::num_running() const {
  return int(std::count_if(sequences_.begin(), sequences_.end(), [](auto& s) {
    return s->running();
  }));
}

int Engine::num_waiting() const {
  return int(std::count_if(sequences_.begin(), sequences_.end(), [](auto& s) {
    return s->state == SequenceState::waiting ||
           s->state == SequenceState::preempted;
  }));
}

void Engine::cancel(int64_t id) {
  Sequence& sequence = at(id);
  if (sequence.state != SequenceState::ended) {
    sequence.finish = FinishReason::cancelled;
    sequence.state = SequenceState::ended;
  }
}

void Engine::release(int64_t id) {
  Sequence& sequence = at(id);
  remember(sequence, true);
  drop_blocks(sequence);
  std::erase_if(sequences_, [id](auto& s) { return s->id == id; });
}

std::span<const int32_t> Engine::generated(int64_t id) const {
  Sequence& sequence = at(id);
  return std::span(sequence.tokens).subspan(size_t(sequence.num_prompt));
}

int64_t Engine::num_cached(int64_t id) const {
  return at(id).cached;
}

SequenceInfo Engine::info(int64_t id) const {
  const Sequence& s = at(id);
  int64_t prompt = s.shifted > 0 ? s.original_prompt : s.num_prompt;
  return {s.state, prompt, s.computed, s.cached, s.num_generated(), s.shifted};
}

std::exception_ptr Engine::failure(int64_t id) const {
  return at(id).failure;
}

Engine::Computed Engine::computed(int64_t id) const {
  const Sequence& s = at(id);
  return {s.cache_key, std::span(s.tokens).first(size_t(s.computed))};
}

namespace {

// Tokens that may not come next are as good as impossible.
void apply_mask(std::span<const uint32_t> mask, std::span<float> logits) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  for (size_t begin = 0; begin < logits.size(); begin += 32) {
    uint32_t word = begin / 32 < mask.size() ? mask[begin / 32] : 0;
    if (word == ~uint32_t(0)) {
      continue;
    }
    size_t end = std::min(begin + 32, logits.size());
    for (size_t i = begin; i < end; ++i) {
      logits[i] = (word >> (i - begin) & 1) != 0 ? logits[i] : kNever;
    }
  }
}

}  // namespace

// How many tokens the sequence may have generated at its end; -1: no limit.
int64_t Engine::room_for_tokens(const Sequence& sequence) const {
  int64_t limit = sequence.options.max_tokens;
  if (options_.max_positions > 0 && !options_.context_shift) {
    int64_t room = options_.max_positions - sequence.num_prompt;
    limit = limit < 0 ? room : std::min(limit, room);
  }
  return limit;
}

// Every row's choice depends on its sequence alone, so the threads that
// computed the rows share them.
void Engine::draw() {
  if (host_ != nullptr && drawings_.size() > 1) {
    std::atomic<size_t> next{0};
    host_->pool().run([&](int) {
      for (size_t i = next++; i < drawings_.size(); i = next++) {
        choose(drawings_[i]);
      }
    });
  } else {
    for (Drawing& drawing : drawings_) {
      choose(drawing);
    }
  }
  for (const Drawing& drawing : drawings_) {
    settle(drawing);
  }
}

// On any thread: touches nothing but the drawing and its sequence.
void Engine::choose(Drawing& drawing) const {
  Sequence& sequence = *drawing.sequence;
  if (room_for_tokens(sequence) == 0) {
    return;
  }
  TokenConstraint* constraint = sequence.options.constraint.get();
  try {
    if (constraint != nullptr) {
      apply_mask(constraint->mask(), drawing.logits);
    }
    drawing.token = sequence.sampler.sample(
        drawing.logits, sequence.tokens, uint64_t(sequence.num_generated()));
    if (constraint != nullptr) {
      constraint->accept(drawing.token);
      drawing.complete = constraint->finished();
    }
  } catch (const Error&) {
    // One sequence's logits are no reason to end the others.
    drawing.token = -1;
    sequence.failure = std::current_exception();
  }
}

void Engine::settle(const Drawing& drawing) {
  Sequence& sequence = *drawing.sequence;
  if (sequence.failure) {
    finish(sequence, FinishReason::failed, -1);
    return;
  }
  int64_t limit = room_for_tokens(sequence);
  if (limit == 0) {
    finish(sequence, FinishReason::length, -1);
    return;
  }
  sequence.tokens.push_back(drawing.token);
  FinishReason reason = FinishReason::none;
  if (std::find(
          sequence.options.eos.begin(),
          sequence.options.eos.end(),
          drawing.token) != sequence.options.eos.end()) {
    reason = FinishReason::eos;
  } else if (drawing.complete) {
    reason = FinishReason::complete;
  } else if (limit > 0 && sequence.num_generated() >= limit) {
    reason = FinishReason::length;
  }
  finish(sequence, reason, drawing.token);
}

// As llama-server chooses what to drop: half of the tokens after the kept ones.
// What is left is a new prompt, whose beginning the prefix cache may hold.
void Engine::shift(Sequence& sequence) {
  int64_t length = int64_t(sequence.tokens.size());
  if (sequence.shifted == 0) {
    sequence.original_prompt = sequence.num_prompt;
  }
  int64_t keep = sequence.options.keep;
  keep = keep < 0 ? sequence.original_prompt : keep;
  keep = std::clamp<int64_t>(keep, 0, std::max<int64_t>(0, length - 4));
  int64_t dropped = std::max<int64_t>(1, (length - keep) / 2);
  remember(sequence, true);
  drop_blocks(sequence);
  sequence.generated_before = sequence.num_generated();
  auto begin = sequence.tokens.begin() + ptrdiff_t(keep);
  sequence.tokens.erase(begin, begin + ptrdiff_t(dropped));
  sequence.num_prompt = int64_t(sequence.tokens.size());
  sequence.shifted += dropped;
  sequence.computed = 0;
  sequence.inserted = 0;
  sequence.leader = -1;
  sequence.options.all_prompt_logits = false;
  key_by_length(sequence);
  if (states_.needed()) {
    sequence.mark_snapshots();
  }
  sequence.state = SequenceState::waiting;
}

void Engine::finish(Sequence& sequence, FinishReason reason, int32_t token) {
  sequence.finish = reason;
  if (reason != FinishReason::none) {
    sequence.state = SequenceState::ended;
  }
  events_.push_back({sequence.id, token, reason});
}

}  // namespace mlxcel
