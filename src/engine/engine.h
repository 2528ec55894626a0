// The engine: sequences are admitted, stepped together and cancelled. One step
// is one forward pass over prompt chunks and generated tokens of many
// sequences. It knows tokens only; text is the layer above.
#pragma once

#include "engine/block_manager.h"
#include "engine/prefix_cache.h"
#include "engine/sampler.h"
#include "engine/saved_prefix.h"
#include "engine/state_slots.h"
#include "models/model.h"
#include "text/token_constraint.h"

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace mlxcel {

class HostWork;

enum class FinishReason : uint8_t {
  none,       // still running
  eos,        // drew an end token
  complete,   // its constraint allows nothing more; the token belongs to it
  length,     // max_tokens or the context is used up
  cancelled,  // by cancel()
  no_memory,  // needs more KV blocks than there are
  failed,     // its step threw or no token could be drawn: see failure()
};

enum class SequenceState : uint8_t {
  waiting,  // for a place or for memory
  running,
  preempted,  // its blocks are in host memory, so that others can go on
  ended,
};

struct SequenceOptions {
  std::vector<int32_t> prompt;  // at least one token
  int64_t max_tokens = -1;      // to generate; -1: until the context is full
  std::vector<int32_t> eos;     // tokens that end the sequence
  SamplingParams sampling;
  // What the answer must look like; null: anything. Used by one sequence only.
  std::shared_ptr<TokenConstraint> constraint;
  std::vector<float> adapter_scales;  // run-time scale by adapter id
  // What beside the tokens decides keys and values: the digest of the adapters
  // in force. Sequences share blocks under equal keys only.
  std::string cache_key;
  bool use_cache = true;
  // Prompt tokens that a context shift leaves in place; -1: all of them.
  int64_t keep = 0;
  // Called with the logits [vocab] at each position, before sampling changes
  // them: all prompt positions when `all_prompt_logits`, else the last, and
  // every generated one.
  std::function<void(int64_t position, std::span<const float> logits)>
      on_logits;
  bool all_prompt_logits = false;  // computes the whole prompt
};

// Which sequence gives way when the KV cache is full; never the oldest.
enum class PreemptionPolicy : uint8_t { youngest_first, longest_first };

struct EngineOptions {
  // Prompt rows a step at most; a model of whole sequences (ContextTraits) may
  // take more, as one sequence is never cut.
  int prefill_chunk = 512;
  int prompt_chunk = 0;       // of these, one prompt's; 0: all
  int max_prefills = 0;       // prompts read in one step; 0: no limit
  int max_sequences = 64;     // running together; later ones wait
  int max_blocks = 0;         // of KV cache; 0: no limit
  int64_t max_positions = 0;  // the model's context; 0: no limit
  // A full context loses the older half of what comes after the kept tokens;
  // the rest is read again as a prompt, and the answer goes on.
  bool context_shift = false;
  // Share blocks of generated positions with later prompts. Their bits are
  // those of the decode arithmetic, not of the prefill's.
  bool reuse_generated = true;
  PrefixCacheOptions prefix_cache;  // off unless it is given bytes
  PreemptionPolicy preemption = PreemptionPolicy::longest_first;
  // Share of the blocks that a newcomer leaves free for running answers.
  double admission_watermark = 0.01;
  // What a step may take while answers are running, in seconds: prompts are
  // read in smaller chunks then. 0: no limit.
  double step_seconds = 0;
};

struct Event {
  int64_t sequence = 0;
  int32_t token = -1;  // -1: none was drawn
  FinishReason finish = FinishReason::none;
};

struct EngineStats {
  int64_t steps = 0, prompt_rows = 0, generated_rows = 0;
  int64_t preemptions = 0;
  double seconds = 0;  // in steps
};

struct SequenceInfo {
  SequenceState state = SequenceState::waiting;
  int64_t num_prompt = 0, computed = 0, cached = 0, generated = 0;
  int64_t shifted = 0;  // tokens that context shifts dropped
};

class Engine {
 public:
  Engine(Model& model, Backend& backend, const EngineOptions& options = {});
  ~Engine();

  // Checks tokens, lengths and sampling, and queues the sequence. Returns its
  // id. Throws TextError when the prompt is empty or longer than the context.
  int64_t add(SequenceOptions options);

  // One forward pass; the events of all sequences that got a token or ended.
  // Empty while prompts are being read. Valid until the next call. Where it
  // throws, the sequences of that step have failed.
  const std::vector<Event>& step();
  bool idle() const;  // nothing is left to run

  // Ends a sequence now; no event follows.
  void cancel(int64_t id);
  // Forgets an ended sequence and gives its blocks back; cancels a running one.
  // What it computed stays in the prefix cache, unless it failed.
  void release(int64_t id);

  // Of what a context shift left, those after it only.
  std::span<const int32_t> generated(int64_t id) const;
  int64_t num_cached(int64_t id) const;  // prompt tokens taken from the cache
  SequenceInfo info(int64_t id) const;
  std::exception_ptr failure(int64_t id) const;
  // Of what the sequence leaves in the prefix cache: the key, and the tokens
  // whose keys and values it has computed. Valid until the next call.
  struct Computed {
    std::string_view key;
    std::span<const int32_t> tokens;
  };
  Computed computed(int64_t id) const;
  int num_running() const;
  int num_waiting() const;  // preempted ones too
  const BlockManager& blocks() const {
    return blocks_;
  }
  PrefixCache& prefix_cache() {
    return prefix_cache_;
  }
  const StateSlots& states() const {
    return states_;
  }
  const EngineStats& stats() const {
    return stats_;
  }
  int64_t vocab_size() const {
    return vocab_size_;
  }

  // Between two steps: what the prefix cache holds of these tokens, and back
  // into it; only where states().can_save(). Restoring returns how many
  // positions can be used now; nothing when there is no room.
  SavedPrefix save_prefix(
      std::string_view key, std::span<const int32_t> tokens);
  std::optional<int64_t> restore_prefix(const SavedPrefix& saved);

  // The forward passes to come use this model, which must differ in its live
  // adapters alone.
  void set_model(Model& model, Backend& backend);

 private:
  struct Sequence;
  struct Drawing;
  Sequence& at(int64_t id) const;

  // Admission, in order of arrival.
  void admit();
  bool start(Sequence& sequence, bool alone);
  bool resume(Sequence& sequence, bool alone);
  bool waits_for_leader(Sequence& sequence) const;
  bool has_room(int64_t blocks, bool alone);
  int64_t new_blocks(const Sequence& sequence, int64_t rows) const;

  // Memory. Makes positions [computed, computed + rows) writable; false when
  // blocks ran out.
  bool ensure_blocks(Sequence& sequence, int64_t rows);
  // The same, where younger sequences give way, or the sequence itself. False
  // when it has no part in this step.
  bool make_room(Sequence& sequence, int64_t rows);
  Sequence* victim(const Sequence& sequence) const;
  void preempt(Sequence& sequence);
  void drop_blocks(Sequence& sequence);
  void give_back(std::span<const int32_t> blocks);  // kNoBlock is allowed
  void drop_unseen_blocks(Sequence& sequence);
  // Hands what was computed to the prefix cache: whole blocks, or all.
  void remember(Sequence& sequence, bool all);

  // The step.
  void build_step();
  void plan_rows();
  void start_over(Sequence& sequence);
  void schedule(Sequence& sequence, int64_t rows);
  void handle_logits();
  void end_scheduled(const std::exception_ptr& failure);
  void draw();
  void choose(Drawing& drawing) const;
  void settle(const Drawing& drawing);
  int64_t room_for_tokens(const Sequence& sequence) const;
  void finish(Sequence& sequence, FinishReason reason, int32_t token);
  void shift(Sequence& sequence);
  void key_by_length(Sequence& sequence) const;

  Model* model_;
  Backend* backend_;
  HostWork* host_;  // of the backend; null where it computes elsewhere
  EngineOptions options_;
  int64_t vocab_size_;
  ContextTraits traits_;
  std::unique_ptr<KvCache> cache_;
  BlockManager blocks_;
  StateSlots states_;
  PrefixCache prefix_cache_;
  EngineStats stats_;
  double prompt_row_seconds_ = 0;  // a prompt row's recent cost
  int64_t next_id_ = 0;
  std::vector<std::unique_ptr<Sequence>> sequences_;  // in order of arrival

  // Working space of a step, kept so that a token allocates nothing.
  struct Scheduled {
    Sequence* sequence;
    int64_t rows;
    int outputs;
  };
  Step step_;
  std::vector<Scheduled> scheduled_;
  std::vector<Sequence*> reading_;
  std::vector<float> logits_;  // where they are not on the host
  std::vector<Drawing> drawings_;
  std::vector<Event> events_;
};

}  // namespace mlxcel
