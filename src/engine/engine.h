// The engine: sequences are admitted, stepped together and cancelled. One step
// is one forward pass over prompt chunks and generated tokens of many
// sequences. It knows tokens only; text is the layer above.
#pragma once

#include "engine/block_manager.h"
#include "engine/sampler.h"
#include "models/model.h"

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace mlxcel {

enum class FinishReason : uint8_t {
  none,       // still running
  eos,        // drew an end token
  length,     // max_tokens or the context is used up
  cancelled,  // by cancel()
  no_memory,  // no KV block is left and nothing else can give one back
};

// Keys and values of tokens computed before, kept for sequences that begin with
// the same tokens under the same adapter scales. Gives its blocks back when
// destroyed; the engine must outlive it.
class CachedPrefix {
 public:
  CachedPrefix(
      BlockManager& manager,
      std::vector<int32_t> tokens,
      std::span<const int32_t> blocks,
      int64_t num_prompt);
  ~CachedPrefix();
  CachedPrefix(const CachedPrefix&) = delete;
  CachedPrefix& operator=(const CachedPrefix&) = delete;

  const std::vector<int32_t>& tokens() const {
    return tokens_;
  }
  const std::vector<int32_t>& blocks() const {
    return blocks_;
  }
  // The first tokens, computed as prompt rows; the rest were generated.
  int64_t num_prompt() const {
    return num_prompt_;
  }

 private:
  BlockManager& manager_;
  std::vector<int32_t> tokens_;
  std::vector<int32_t> blocks_;
  int64_t num_prompt_;
};

struct SequenceOptions {
  std::vector<int32_t> prompt;  // at least one token
  int64_t max_tokens = -1;      // to generate; -1: until the context is full
  std::vector<int32_t> eos;     // tokens that end the sequence
  SamplingParams sampling;
  std::vector<float> adapter_scales;  // run-time scale by adapter id
  // Computed under the same scales; its common part with the prompt is shared.
  std::shared_ptr<const CachedPrefix> prefix;
  // Called with the logits [vocab] at each position, before sampling changes
  // them: all prompt positions when `all_prompt_logits`, else the last, and
  // every generated one.
  std::function<void(int64_t position, std::span<const float> logits)>
      on_logits;
  bool all_prompt_logits = false;  // leaves `prefix` unused
};

struct EngineOptions {
  int prefill_chunk = 512;    // prompt rows a step at most
  int max_sequences = 64;     // running together; later ones wait
  int max_blocks = 0;         // of KV cache; 0: no limit
  int64_t max_positions = 0;  // the model's context; 0: no limit
  // Share blocks of generated positions with later prompts. Their bits are
  // those of the decode arithmetic, not of the prefill's.
  bool reuse_generated = true;
};

struct Event {
  int64_t sequence = 0;
  int32_t token = -1;  // -1: none was drawn (no_memory, max_tokens 0)
  FinishReason finish = FinishReason::none;
};

class Engine {
 public:
  Engine(Model& model, Backend& backend, const EngineOptions& options = {});
  ~Engine();

  // Checks tokens, lengths and sampling, and queues the sequence. Returns its
  // id. Throws UsageError when the prompt is empty or longer than the context.
  int64_t add(SequenceOptions options);

  // One forward pass; the events of all sequences that got a token or ended.
  // Empty while prompts are being read. Valid until the next call.
  const std::vector<Event>& step();
  bool idle() const;  // nothing is left to run

  // Ends a sequence now; no event follows.
  void cancel(int64_t id);
  // Forgets an ended sequence and gives its blocks back; cancels a running one.
  void release(int64_t id);
  // What the sequence has computed so far, shared with it.
  std::shared_ptr<const CachedPrefix> save_prefix(int64_t id);

  std::span<const int32_t> generated(int64_t id) const;
  int64_t num_cached(int64_t id) const;  // prompt tokens taken from the prefix
  int num_running() const;
  const BlockManager& blocks() const {
    return blocks_;
  }
  int64_t vocab_size() const {
    return vocab_size_;
  }

 private:
  struct Sequence;
  Sequence& at(int64_t id) const;
  void admit();
  void share_prefix(Sequence& sequence);
  // Makes positions [computed, computed + rows) writable; false when blocks
  // ran out.
  bool ensure_blocks(Sequence& sequence, int64_t rows);
  void schedule(Sequence& sequence, int64_t rows);
  void build_step();
  void handle_logits();
  void draw(Sequence& sequence, std::span<float> logits);
  void finish(Sequence& sequence, FinishReason reason, int32_t token);
  void drop_blocks(Sequence& sequence);

  Model& model_;
  Backend& backend_;
  EngineOptions options_;
  int64_t vocab_size_;
  std::unique_ptr<KvCache> cache_;
  BlockManager blocks_;
  int64_t next_id_ = 0;
  std::vector<std::unique_ptr<Sequence>> sequences_;  // in order of admission

  // Working space of a step, kept so that a token allocates nothing.
  struct Scheduled {
    Sequence* sequence;
    int64_t rows;
    int outputs;
  };
  Step step_;
  std::vector<Scheduled> scheduled_;
  std::vector<Sequence*> decoding_;
  std::vector<float> logits_;
  std::vector<Event> events_;
};

}  // namespace mlxcel
