#include "server/service.h"

#include "core/error.h"
#include "core/log.h"
#include "engine/text_stream.h"
#include "http/failure.h"
#include "server/answers.h"
#include "server/figures.h"
#include "server/logprobs.h"
#include "server/prompt_length.h"
#include "server/thought_budget.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace mlxcel::server {

namespace {

using Clock = std::chrono::steady_clock;
using http::Failure;

// What fails there is no reason to end the engine's thread, and with it the
// process.
template <typename Work>
void log_failure(const char* what, const Work& work) {
  try {
    work();
  } catch (const std::exception& error) {
    log_warning(cat(what, " failed: ", error.what()));
  }
}

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

}  // namespace

struct Service::Running {
  int64_t id = 0;
  int slot = -1;
  size_t index = 0;
  GenerationRequest request;
  PartSink sink;
  std::shared_ptr<GenerationHandle> handle;
  TextStream text;
  Clock::time_point arrived, started, first, last;
  bool has_started = false;
  std::vector<int32_t> tokens;
  std::vector<float> logits;  // of the next draw, when log-probabilities count
  GenerationPart part;        // what has not been sent yet
  bool ended = false;

  Running(const Tokenizer& tokenizer, GenerationRequest given)
      : request(std::move(given)),
        text(
            tokenizer,
            request.stops,
            request.skip_special,
            request.kept_special) {}
};

Service::Service(
    Engine& engine,
    const Tokenizer& tokenizer,
    std::vector<int32_t> eos,
    const ServiceOptions& options,
    http::Registry& metrics)
    : engine_(engine),
      tokenizer_(tokenizer),
      eos_(std::move(eos)),
      options_(options),
      vocab_size_(engine.vocab_size()),
      figures_(std::make_unique<Figures>(metrics)),
      slots_(size_t(options.max_running)),
      thread_([this] { loop(); }) {}

Service::~Service() {
  stop();
}

void Service::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void Service::on_engine(std::function<void(Engine&)> work) {
  {
    std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
  }
  wake_.notify_one();
}

std::vector<SlotInfo> Service::inspect() const {
  std::vector<SlotInfo> slots;
  for (const auto& running : running_) {
    slots.push_back(
        {running->slot,
         running->id,
         engine_.info(running->id),
         running->request.max_tokens,
         double(running->request.sampling.temperature)});
  }
  return slots;
}

SlotContent* Service::content_of(int slot) {
  bool busy = std::any_of(running_.begin(), running_.end(), [&](auto& r) {
    return r->slot == slot;
  });
  return busy ? nullptr : &slots_.at(size_t(slot));
}

// The lowest that is free: those that gave way to others keep theirs, so there
// may be more than run.
void Service::take_slot(Running& running) const {
  auto taken = [this](int slot) {
    return std::any_of(running_.begin(), running_.end(), [&](const auto& r) {
      return r->slot == slot;
    });
  };
  int slot = 0;
  while (taken(slot)) {
    ++slot;
  }
  running.slot = slot;
}

void Service::loop() {
  std::deque<Submission> submissions;
  std::deque<std::function<void(Engine&)>> work;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      auto something = [&] {
        return stopping_ || !submissions_.empty() || !work_.empty() ||
               !running_.empty();
      };
      bool may_sleep = options_.sleep_after.count() >= 0 && !asleep_;
      auto bedtime = last_request_ + options_.sleep_after;
      if (may_sleep && !wake_.wait_until(lock, bedtime, something)) {
        lock.unlock();
        fall_asleep();
        lock.lock();
      }
      wake_.wait(lock, something);
      if (stopping_) {
        break;
      }
      if (!submissions_.empty() || !running_.empty()) {
        last_request_ = Clock::now();
        asleep_ = false;
      }
      submissions.swap(submissions_);
      work.swap(work_);
    }
    for (Submission& submission : submissions) {
      start(std::move(submission));
    }
    submissions.clear();
    for (auto& function : work) {
      log_failure("work between two steps", [&] { function(engine_); });
    }
    work.clear();
    drop_cancelled();
    if (!running_.empty()) {
      step();
    }
    publish();
  }
  std::deque<Submission> rest;
  {
    std::lock_guard lock(mutex_);
    rest.swap(submissions_);
  }
  for (Submission& submission : rest) {
    start(std::move(submission));
  }
  Failure failure(503, "unavailable_error", "the server is stopping");
  fail_all(std::make_exception_ptr(failure));
}

std::vector<int> Service::retire_adapters(const std::vector<int>& ids) {
  return ask([&](Engine&) {
    std::vector<int> unused;
    for (int id : ids) {
      bool used = std::any_of(running_.begin(), running_.end(), [&](auto& r) {
        const std::vector<float>& scales = r->request.adapters.scales;
        return size_t(id) < scales.size() && scales[size_t(id)] != 0;
      });
      if (!used) {
        retired_.insert(id);
        unused.push_back(id);
      }
    }
    return unused;
  });
}

void Service::check_adapters(const AdapterChoice& choice) const {
  for (int id : retired_) {
    if (size_t(id) < choice.scales.size() && choice.scales[size_t(id)] != 0) {
      throw Failure(
          404, "not_found_error", cat("adapter ", id, " was unloaded"));
    }
  }
}

// What keeps one of them from running is its answer.
void Service::start(Submission submission) {
  for (size_t i = 0; i < submission.requests.size(); ++i) {
    try {
      begin(submission, i);
    } catch (...) {
      GenerationPart part;
      part.index = i;
      part.end.emplace();
      part.end->failure = std::current_exception();
      deliver_end(submission.sink, std::move(part));
    }
  }
}

void Service::begin(Submission& submission, size_t index) {
  figures_->count_request(submission.requests[index]);
  check_adapters(submission.requests[index].adapters);
  auto running = std::make_unique<Running>(
      tokenizer_, std::move(submission.requests[index]));
  Running& r = *running;
  r.index = index;
  r.sink = submission.sink;
  r.handle = submission.handle;
  r.arrived = submission.arrived;
  SequenceOptions options = sequence_options(r);
  // Before the engine has it: what it has must be known here.
  running_.push_back(std::move(running));
  try {
    r.id = engine_.add(std::move(options));
  } catch (...) {
    running_.pop_back();
    throw;
  }
}

SequenceOptions Service::sequence_options(Running& r) const {
  SequenceOptions options;
  options.prompt = r.request.prompt;
  options.max_tokens = r.request.max_tokens;
  options.sampling = r.request.sampling;
  if (r.request.ignore_eos) {
    for (int32_t token : eos_) {
      options.sampling.logit_bias.emplace_back(token, -INFINITY);
    }
  } else {
    options.eos = eos_;
  }
  options.adapter_scales = r.request.adapters.scales;
  options.cache_key = r.request.adapters.digest;
  options.use_cache = options_.use_cache && r.request.cache_prompt;
  if (r.request.grammar) {
    options.constraint = r.request.grammar->start();
  }
  options.constraint = limit_thoughts(
      std::move(options.constraint),
      r.request.thoughts,
      tokenizer_,
      vocab_size_);
  options.keep = r.request.keep;
  options.all_prompt_logits = r.request.prompt_logprobs;
  if (r.request.logprobs >= 0) {
    options.on_logits = [&r](int64_t position, std::span<const float> logits) {
      size_t next = size_t(position) + 1;
      // What a context shift leaves is read again, at other positions: once
      // a token is drawn, all logits are those of the next one.
      if (r.tokens.empty() && next < r.request.prompt.size()) {
        r.part.prompt_logprobs.push_back(
            logprob_of(logits, r.request.prompt[next], r.request.logprobs));
      } else {
        r.logits.assign(logits.begin(), logits.end());
      }
    };
  }
  return options;
}

void Service::drop_cancelled() {
  std::erase_if(running_, [this](auto& running) {
    if (!running->handle->cancelled()) {
      return false;
    }
    forget(*running);
    figures_->cancelled.add();
    --in_flight_;
    return true;
  });
}

void Service::end_late() {
  if (options_.decode_timeout.count() == 0) {
    return;
  }
  Clock::time_point oldest = Clock::now() - options_.decode_timeout;
  for (auto& running : running_) {
    if (!running->ended && running->has_started && running->started < oldest) {
      end(*running, FinishReason::length);
    }
  }
}

// Nobody has asked for a while: what can be computed again goes, and freed
// memory goes back to the system. Weights are mapped; the system takes those
// pages when it needs them.
void Service::fall_asleep() {
  log_failure("giving memory back", [&] { engine_.prefix_cache().clear(); });
  give_memory_back();
  asleep_ = true;
  publish();
  log_info("no requests for a while: memory was given back");
}

void Service::fail_all(const std::exception_ptr& failure) {
  for (auto& running : running_) {
    forget(*running);
    if (running->ended) {
      continue;  // its last part is on its way
    }
    GenerationPart part;
    part.index = running->index;
    part.end.emplace();
    part.end->failure = failure;
    deliver_end(running->sink, std::move(part));
  }
  running_.clear();
}

// What it computed goes to the prompt cache.
void Service::forget(const Running& running) {
  log_failure("the end of a request", [&] { engine_.release(running.id); });
}

void Service::step() {
  try {
    Clock::time_point begin = Clock::now();
    const std::vector<Event>& events = engine_.step();
    for (auto& running : running_) {
      if (!running->has_started &&
          engine_.info(running->id).state != SequenceState::waiting) {
        running->has_started = true;
        running->started = begin;
        take_slot(*running);
      }
    }
    // Both are in the order of the sequences' ids, or nearly so.
    for (const Event& event : events) {
      auto place = std::lower_bound(
          running_.begin(),
          running_.end(),
          event.sequence,
          [](const auto& running, int64_t id) { return running->id < id; });
      if (place != running_.end() && (*place)->id == event.sequence) {
        take(**place, event);
      }
    }
    end_late();
  } catch (const std::exception& error) {
    log_warning(cat("a step failed: ", error.what()));
    fail_all(std::current_exception());
    return;
  }
  std::erase_if(running_, [this](auto& running) {
    if (running->ended) {
      forget(*running);
    }
    return running->ended;
  });
}

void Service::take(Running& r, const Event& event) {
  Clock::time_point now = Clock::now();
  if (event.token >= 0) {
    if (r.tokens.empty()) {
      r.first = now;
      figures_->first_token.observe(seconds_between(r.arrived, now));
    } else {
      figures_->inter_token.observe(seconds_between(r.last, now));
    }
    r.last = now;
    r.tokens.push_back(event.token);
    r.part.tokens.push_back(event.token);
    if (r.request.logprobs >= 0) {
      r.part.logprobs.push_back(
          logprob_of(r.logits, event.token, r.request.logprobs));
    }
    if (event.finish != FinishReason::eos) {
      r.part.text += r.text.push(event.token);
    }
  }
  if (event.finish != FinishReason::none || r.text.stopped()) {
    end(r, event.finish);
  } else if (r.request.stream && !r.part.text.empty()) {
    r.part.index = r.index;
    r.part.slot = r.slot;
    r.sink(std::exchange(r.part, {}));
  }
}

void Service::end(Running& r, FinishReason finish) {
  Clock::time_point now = Clock::now();
  r.ended = true;
  if (size_t(r.slot) < slots_.size()) {
    Engine::Computed computed = engine_.computed(r.id);
    slots_[size_t(r.slot)] = {
        std::string(computed.key),
        {computed.tokens.begin(), computed.tokens.end()}};
  }
  r.part.index = r.index;
  r.part.slot = r.slot;
  r.part.text += r.text.finish();
  GenerationEnd end;
  if (finish == FinishReason::failed) {
    end.failure = engine_.failure(r.id);
  } else if (finish == FinishReason::no_memory) {
    Failure failure(
        503,
        "unavailable_error",
        "the KV cache is too small for this prompt and its answer");
    end.failure = std::make_exception_ptr(failure);
  }
  bool whole = finish == FinishReason::eos || finish == FinishReason::complete;
  end.stop = r.text.stopped() ? StopKind::stop_string
             : whole          ? StopKind::eos
                              : StopKind::length;
  if (r.text.stopped()) {
    end.stopping_word = r.request.stops[*r.text.stopped()];
  }
  end.prompt_tokens = int64_t(r.request.prompt.size());
  end.cached_tokens = engine_.num_cached(r.id);
  end.shifted_tokens = engine_.info(r.id).shifted;
  if (r.tokens.empty()) {
    r.first = now;
  }
  end.queue_seconds = seconds_between(r.arrived, r.started);
  end.prompt_seconds = seconds_between(r.started, r.first);
  end.decode_seconds = seconds_between(r.first, now);
  end.tokens = r.tokens;
  figures_->count_end(r.request, end);
  r.part.end = std::move(end);
  deliver_end(r.sink, std::move(r.part));
}

// Whoever has the last part may send the next request at once: the place in the
// queue is free before.
void Service::deliver_end(const PartSink& sink, GenerationPart part) {
  --in_flight_;
  log_failure("the delivery of an answer", [&] { sink(std::move(part)); });
}

void Service::publish() {
  log_failure("a metric", [&] { figures_->update(engine_); });
}

}  // namespace mlxcel::server
