// What goes into the next forward pass, and what comes out of it.
#include "engine/sequence.h"
#include "ops/host_work.h"

#include <algorithm>
#include <chrono>

namespace mlxcel {

namespace {

// Fewer prompt rows than this waste the products, which read all weights for
// them.
constexpr int64_t kLeastPromptRows = 64;
// What a step's logits of whole prompts may take: they stand twice where the
// backend does not compute on the host.
constexpr int64_t kOutputBytes = int64_t(64) << 20;

}  // namespace

// Every running answer gets a row. Prompts share the rest: half goes to the
// oldest, so that it is never starved; the other half to the shortest first, so
// that a short prompt does not wait for long ones.
void Engine::plan_rows() {
  reading_.clear();
  bool answering = false;
  for (auto& sequence : sequences_) {
    sequence->rows = 0;
    if (!sequence->running()) {
      continue;
    }
    if (traits_.whole_sequence) {
      start_over(*sequence);
    }
    if (sequence->in_prompt()) {
      reading_.push_back(sequence.get());
    } else {
      sequence->rows = 1;
      answering = true;
    }
  }
  if (reading_.empty()) {
    return;
  }
  int64_t budget = options_.prefill_chunk;
  if (answering && options_.step_seconds > 0 && prompt_row_seconds_ > 0) {
    budget = std::min(
        budget,
        std::max(
            kLeastPromptRows,
            int64_t(options_.step_seconds / prompt_row_seconds_)));
  }
  auto remaining = [](const Sequence* sequence) {
    return int64_t(sequence->tokens.size()) - sequence->computed -
           sequence->rows;
  };
  int64_t own = options_.prompt_chunk > 0 ? options_.prompt_chunk : budget;
  int64_t outputs = std::max<int64_t>(
      1, kOutputBytes / (vocab_size_ * int64_t(sizeof(float))));
  int prefills = 0;
  auto give = [&](Sequence* sequence, int64_t limit) {
    bool one_more = sequence->rows == 0;
    if (one_more && options_.max_prefills > 0 &&
        prefills >= options_.max_prefills) {
      return;
    }
    if (traits_.whole_sequence) {  // all of it or nothing
      int64_t rows = remaining(sequence);
      if (rows > 0 && (prefills == 0 || rows <= budget)) {
        sequence->rows = rows;
        budget -= rows;
        ++prefills;
      }
      return;
    }
    int64_t rows =
        std::min({limit, budget, remaining(sequence), own - sequence->rows});
    if (states_.needed()) {
      // A step ends where a state is kept.
      rows = std::min(
          rows, sequence->next_border() - sequence->computed - sequence->rows);
    }
    if (sequence->options.all_prompt_logits) {
      rows = std::min(rows, outputs);
      outputs -= rows;
    }
    sequence->rows += rows;
    budget -= rows;
    prefills += one_more && rows > 0 ? 1 : 0;
  };
  Sequence* oldest = reading_.front();
  give(oldest, (budget + 1) / 2);
  std::stable_sort(
      reading_.begin() + 1, reading_.end(), [&](auto* left, auto* right) {
        return remaining(left) < remaining(right);
      });
  for (size_t i = 1; i < reading_.size(); ++i) {
    give(reading_[i], budget);
  }
  give(oldest, budget);
}

// The next token takes a pass from position 0. The blocks are written again.
void Engine::start_over(Sequence& sequence) {
  if (sequence.computed == 0) {
    return;
  }
  sequence.computed = 0;
  sequence.options.all_prompt_logits = false;  // they were given
  states_.release(sequence.state_slot);
  sequence.state_slot = states_.allocate();
}

void Engine::build_step() {
  step_.tokens.clear();
  step_.segments.clear();
  step_.output_rows.clear();
  step_.num_prompt_rows = 0;
  scheduled_.clear();

  plan_rows();
  // Older sequences get their blocks first; younger ones may have to give way.
  for (auto& sequence : sequences_) {
    if (sequence->running() && sequence->rows > 0 &&
        !make_room(*sequence, sequence->rows)) {
      sequence->rows = 0;
    }
  }
  for (bool prompt : {true, false}) {
    for (auto& sequence : sequences_) {
      if (sequence->running() && sequence->rows > 0 &&
          sequence->in_prompt() == prompt) {
        schedule(*sequence, sequence->rows);
      }
    }
  }
}

void Engine::schedule(Sequence& sequence, int64_t rows) {
  Segment segment;
  segment.first_row = step_.num_rows();
  segment.num_rows = int(rows);
  segment.position = sequence.computed;
  segment.prompt = sequence.in_prompt();
  segment.rope_length =
      segment.prompt ? int64_t(sequence.tokens.size()) : sequence.computed + 1;
  segment.blocks = sequence.blocks;
  segment.state = sequence.state_slot;
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

const std::vector<Event>& Engine::step() {
  events_.clear();
  admit();
  build_step();
  if (!scheduled_.empty()) {
    try {
      handle_logits();
    } catch (...) {
      end_scheduled(std::current_exception());
      throw;
    }
    return events_;
  }
  // Blocks of ended sequences that nobody released are all that is in the way.
  if (events_.empty() && num_running() == 0) {
    for (auto& sequence : sequences_) {
      if (sequence->state != SequenceState::ended) {
        finish(*sequence, FinishReason::no_memory, -1);
        break;
      }
    }
  }
  return events_;
}

// Recurrent states are written in place, so after half a step they stand
// somewhere else than `computed` says: nobody may go on from them.
void Engine::end_scheduled(const std::exception_ptr& failure) {
  for (const Scheduled& scheduled : scheduled_) {
    scheduled.sequence->state = SequenceState::ended;
    scheduled.sequence->finish = FinishReason::failed;
    scheduled.sequence->failure = failure;
  }
}

void Engine::handle_logits() {
  auto begin = std::chrono::steady_clock::now();
  Tensor result = model_->forward(step_, *cache_);
  size_t vocab = size_t(vocab_size_);
  float* values = nullptr;
  if (step_.output_rows.empty()) {
    // Nobody asked for any.
  } else if (host_ != nullptr) {
    values = host_->values(result);
  } else {
    logits_.resize(step_.output_rows.size() * vocab);
    values = logits_.data();
    backend_->read(result, values);
  }
  double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
          .count();
  ++stats_.steps;
  stats_.seconds += seconds;
  stats_.prompt_rows += step_.num_prompt_rows;
  stats_.generated_rows += step_.num_rows() - step_.num_prompt_rows;
  if (step_.num_prompt_rows >= kLeastPromptRows) {
    double row = seconds / step_.num_prompt_rows;
    prompt_row_seconds_ =
        prompt_row_seconds_ == 0 ? row : (3 * prompt_row_seconds_ + row) / 4;
  }

  drawings_.clear();
  size_t row = 0;
  for (const Scheduled& scheduled : scheduled_) {
    Sequence& sequence = *scheduled.sequence;
    int64_t first = sequence.computed + scheduled.rows - scheduled.outputs;
    sequence.computed += scheduled.rows;
    for (int i = 0; i < scheduled.outputs; ++i, ++row) {
      std::span<float> logits(values + row * vocab, vocab);
      if (sequence.options.on_logits) {
        sequence.options.on_logits(sequence.shifted + first + i, logits);
      }
      if (first + i + 1 == int64_t(sequence.tokens.size())) {
        drawings_.push_back({&sequence, logits});
      }
    }
  }
  draw();
  for (const Scheduled& scheduled : scheduled_) {
    Sequence& sequence = *scheduled.sequence;
    remember(sequence, false);
    drop_unseen_blocks(sequence);
    if (options_.context_shift && options_.max_positions > 0 &&
        sequence.running() && !sequence.in_prompt() &&
        int64_t(sequence.tokens.size()) >= options_.max_positions) {
      shift(sequence);
    }
  }
}

}  // namespace mlxcel
