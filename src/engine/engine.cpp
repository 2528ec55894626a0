#include "engine/engine.h"

#include "core/error.h"

#include <algorithm>
#include <cassert>

namespace mlxcel {

struct Engine::Sequence {
  int64_t id;
  SequenceOptions options;
  Sampler sampler;
  std::vector<int32_t> tokens;  // prompt, then what was generated
  int64_t num_prompt;
  int64_t computed = 0;  // positions whose keys and values are in the cache
  int64_t cached = 0;    // of these, taken from a prefix
  std::vector<int32_t> blocks;
  bool running = false;
  FinishReason finish = FinishReason::none;

  Sequence(int64_t sequence_id, SequenceOptions given)
      : id(sequence_id),
        options(std::move(given)),
        sampler(options.sampling),
        tokens(options.prompt),
        num_prompt(int64_t(tokens.size())) {}

  int64_t num_generated() const {
    return int64_t(tokens.size()) - num_prompt;
  }
  bool in_prompt() const {
    return computed < num_prompt;
  }
};

CachedPrefix::CachedPrefix(
    BlockManager& manager,
    std::vector<int32_t> tokens,
    std::span<const int32_t> blocks,
    int64_t num_prompt)
    : manager_(manager),
      tokens_(std::move(tokens)),
      blocks_(blocks.begin(), blocks.end()),
      num_prompt_(num_prompt) {
  for (int32_t block : blocks_) {
    manager_.retain(block);
  }
}

CachedPrefix::~CachedPrefix() {
  for (int32_t block : blocks_) {
    manager_.release(block);
  }
}

Engine::Engine(Model& model, Backend& backend, const EngineOptions& options)
    : model_(model),
      backend_(backend),
      options_(options),
      vocab_size_(model.vocab_size()),
      cache_(backend.make_kv_cache(model.kv_cache_spec())),
      blocks_(*cache_, options.max_blocks) {
  assert(options.prefill_chunk > 0 && options.max_sequences > 0);
}

Engine::~Engine() = default;

Engine::Sequence& Engine::at(int64_t id) const {
  for (const auto& sequence : sequences_) {
    if (sequence->id == id) {
      return *sequence;
    }
  }
  throw Error(cat("no sequence ", id), "it was released before", "");
}

int64_t Engine::add(SequenceOptions options) {
  if (options.prompt.empty()) {
    throw UsageError(
        "the prompt is empty",
        "it has no token, so there is nothing to continue",
        "give a prompt");
  }
  int64_t length = int64_t(options.prompt.size());
  if (options_.max_positions > 0 && length > options_.max_positions) {
    throw UsageError(
        "the prompt is longer than the context",
        cat("it has ", length, " tokens, the context ", options_.max_positions),
        "shorten the prompt");
  }
  for (int32_t token : options.prompt) {
    if (token < 0 || token >= vocab_size_) {
      throw UsageError(
          "token outside the vocabulary",
          cat("id ", token, ", the model has ", vocab_size_),
          "use the tokenizer that belongs to this model");
    }
  }
  sequences_.push_back(
      std::make_unique<Sequence>(next_id_, std::move(options)));
  return next_id_++;
}

bool Engine::idle() const {
  return std::all_of(sequences_.begin(), sequences_.end(), [](auto& s) {
    return s->finish != FinishReason::none;
  });
}

int Engine::num_running() const {
  return int(std::count_if(sequences_.begin(), sequences_.end(), [](auto& s) {
    return s->running;
  }));
}

void Engine::cancel(int64_t id) {
  Sequence& sequence = at(id);
  if (sequence.finish == FinishReason::none) {
    sequence.finish = FinishReason::cancelled;
    sequence.running = false;
  }
}

void Engine::release(int64_t id) {
  drop_blocks(at(id));
  std::erase_if(sequences_, [id](auto& s) { return s->id == id; });
}

void Engine::drop_blocks(Sequence& sequence) {
  for (int32_t block : sequence.blocks) {
    blocks_.release(block);
  }
  sequence.blocks.clear();
}

std::shared_ptr<const CachedPrefix> Engine::save_prefix(int64_t id) {
  Sequence& sequence = at(id);
  size_t used = size_t(blocks_for(sequence.computed));
  return std::make_shared<CachedPrefix>(
      blocks_,
      std::vector<int32_t>(
          sequence.tokens.begin(),
          sequence.tokens.begin() + ptrdiff_t(sequence.computed)),
      std::span(sequence.blocks).first(std::min(used, sequence.blocks.size())),
      std::min(sequence.num_prompt, sequence.computed));
}

std::span<const int32_t> Engine::generated(int64_t id) const {
  Sequence& sequence = at(id);
  return std::span(sequence.tokens).subspan(size_t(sequence.num_prompt));
}

int64_t Engine::num_cached(int64_t id) const {
  return at(id).cached;
}

void Engine::admit() {
  int running = num_running();
  for (auto& sequence : sequences_) {
    if (running >= options_.max_sequences) {
      return;
    }
    if (!sequence->running && sequence->finish == FinishReason::none) {
      share_prefix(*sequence);
      sequence->running = true;
      ++running;
    }
  }
}

void Engine::share_prefix(Sequence& sequence) {
  std::shared_ptr<const CachedPrefix> prefix =
      std::move(sequence.options.prefix);
  if (!prefix || sequence.options.all_prompt_logits) {
    return;
  }
  // The last prompt token is always computed: its logits are needed.
  int64_t limit = std::min<int64_t>(
      sequence.num_prompt - 1,
      options_.reuse_generated ? int64_t(prefix->tokens().size())
                               : prefix->num_prompt());
  int64_t common = 0;
  while (common < limit &&
         sequence.tokens[size_t(common)] == prefix->tokens()[size_t(common)]) {
    ++common;
  }
  for (int64_t i = 0; i < blocks_for(common); ++i) {
    blocks_.retain(prefix->blocks()[size_t(i)]);
    sequence.blocks.push_back(prefix->blocks()[size_t(i)]);
  }
  sequence.computed = sequence.cached = common;
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

void Engine::schedule(Sequence& sequence, int64_t rows) {
  Segment segment;
  segment.first_row = step_.num_rows();
  segment.num_rows = int(rows);
  segment.position = sequence.computed;
  segment.prompt = sequence.in_prompt();
  segment.rope_length =
      segment.prompt ? sequence.num_prompt : sequence.computed + 1;
  segment.blocks = sequence.blocks;
  segment.adapter_scales = sequence.options.adapter_scales;
  step_.segments.push_back(segment);
  auto begin = sequence.tokens.begin() + ptrdiff_t(sequence.computed);
  step_.tokens.insert(step_.tokens.end(), begin, begin + ptrdiff_t(rows));

  bool last = sequence.computed + rows == int64_t(sequence.tokens.size());
  int outputs = segment.prompt && sequence.options.all_prompt_logits
                    ? int(rows)
                    : int(last);
  for (int i = outputs; i > 0; --i) {
    step_.output_rows.push_back(step_.num_rows() - i);
  }
  if (segment.prompt) {
    step_.num_prompt_rows = step_.num_rows();
  }
  scheduled_.push_back({&sequence, rows, outputs});
}

void Engine::build_step() {
  step_.tokens.clear();
  step_.segments.clear();
  step_.output_rows.clear();
  step_.num_prompt_rows = 0;
  scheduled_.clear();

  // Generated rows get their blocks first, so that a new prompt never stops a
  // running answer; in the step the prompt rows come first.
  decoding_.clear();
  for (auto& sequence : sequences_) {
    if (sequence->running && !sequence->in_prompt() &&
        ensure_blocks(*sequence, 1)) {
      decoding_.push_back(sequence.get());
    }
  }
  int64_t budget = options_.prefill_chunk;
  for (auto& sequence : sequences_) {
    if (budget == 0) {
      break;
    }
    if (!sequence->running || !sequence->in_prompt()) {
      continue;
    }
    int64_t rows = std::min(budget, sequence->num_prompt - sequence->computed);
    if (!ensure_blocks(*sequence, rows)) {
      break;  // first come, first served
    }
    schedule(*sequence, rows);
    budget -= rows;
  }
  for (Sequence* sequence : decoding_) {
    schedule(*sequence, 1);
  }
}

const std::vector<Event>& Engine::step() {
  events_.clear();
  admit();
  build_step();
  if (scheduled_.empty()) {
    // Nothing fits: the youngest gives way, so that the others can go on.
    for (auto it = sequences_.rbegin(); it != sequences_.rend(); ++it) {
      if ((*it)->running) {
        finish(**it, FinishReason::no_memory, -1);
        drop_blocks(**it);
        (*it)->computed = 0;
        break;
      }
    }
    return events_;
  }
  handle_logits();
  return events_;
}

void Engine::handle_logits() {
  Tensor result = model_.forward(step_, *cache_);
  size_t vocab = size_t(vocab_size_);
  logits_.resize(step_.output_rows.size() * vocab);
  if (!logits_.empty()) {
    backend_.read(result, logits_.data());
  }
  size_t row = 0;
  for (const Scheduled& scheduled : scheduled_) {
    Sequence& sequence = *scheduled.sequence;
    int64_t first = sequence.computed + scheduled.rows - scheduled.outputs;
    sequence.computed += scheduled.rows;
    for (int i = 0; i < scheduled.outputs; ++i, ++row) {
      std::span<float> logits = std::span(logits_).subspan(row * vocab, vocab);
      if (sequence.options.on_logits) {
        sequence.options.on_logits(first + i, logits);
      }
      if (first + i + 1 == int64_t(sequence.tokens.size())) {
        draw(sequence, logits);
      }
    }
  }
}

void Engine::draw(Sequence& sequence, std::span<float> logits) {
  int64_t limit = sequence.options.max_tokens;
  if (options_.max_positions > 0) {
    int64_t room = options_.max_positions - sequence.num_prompt;
    limit = limit < 0 ? room : std::min(limit, room);
  }
  if (limit == 0) {
    finish(sequence, FinishReason::length, -1);
    return;
  }
  int32_t token = sequence.sampler.sample(
      logits, sequence.tokens, uint64_t(sequence.num_generated()));
  sequence.tokens.push_back(token);
  FinishReason reason = FinishReason::none;
  if (std::find(
          sequence.options.eos.begin(), sequence.options.eos.end(), token) !=
      sequence.options.eos.end()) {
    reason = FinishReason::eos;
  } else if (limit > 0 && sequence.num_generated() >= limit) {
    reason = FinishReason::length;
  }
  finish(sequence, reason, token);
}

void Engine::finish(Sequence& sequence, FinishReason reason, int32_t token) {
  sequence.finish = reason;
  sequence.running = reason == FinishReason::none;
  events_.push_back({sequence.id, token, reason});
}

}  // namespace mlxcel
