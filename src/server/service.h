// The one thread that owns the engine. Handlers submit requests from any
// thread; parts come back through their sinks.
#pragma once

#include "http/metrics.h"
#include "server/generation.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace mlxcel::server {

struct ServiceOptions {
  int max_running = 16;        // sequences that run together
  int max_queued = 32;         // beyond them; more are refused
  int64_t context = 0;         // positions of a sequence
  bool context_shift = false;  // an answer goes on beyond them
  bool use_cache = true;
  // An answer that runs for longer ends as at a limit; 0: none does.
  std::chrono::seconds decode_timeout{0};
  // After so long without a request, memory goes back; < 0: never.
  std::chrono::seconds sleep_after{-1};
};

// A slot is the place of one sequence among those that run together.
struct SlotInfo {
  int slot = -1;  // -1: it waits for one
  int64_t task = 0;
  SequenceInfo sequence;
  int64_t max_tokens = -1;
  double temperature = 0;
};

// What a slot computed last, as the prefix cache knows it.
struct SlotContent {
  std::string key;
  std::vector<int32_t> tokens;
};

class Service {
 public:
  // All references outlive the service.
  Service(
      Engine& engine,
      const Tokenizer& tokenizer,
      std::vector<int32_t> eos,
      const ServiceOptions& options,
      http::Registry& metrics);
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  // Queues the requests together, or none. Throws Failure: 400 for prompts
  // that cannot run (empty, too long, tokens outside the vocabulary), 503 when
  // the queue is full or the service ends.
  std::shared_ptr<GenerationHandle> submit(
      std::vector<GenerationRequest> requests, PartSink sink);

  // Throws Failure for more answers than can run and wait: before a request is
  // copied for each of them.
  void check_count(size_t answers) const;

  // Runs between two steps, on the engine's thread. What it throws is logged:
  // whoever waits for it uses ask().
  void on_engine(std::function<void(Engine&)> work);
  // What `question` makes of the engine, or throws. Waits for the end of a
  // step: for threads that may block.
  template <typename Question>
  std::invoke_result_t<Question&, Engine&> ask(Question question) {
    using Result = std::invoke_result_t<Question&, Engine&>;
    auto task = std::make_shared<std::packaged_task<Result(Engine&)>>(
        std::move(question));
    std::future<Result> answer = task->get_future();
    on_engine([task](Engine& engine) { (*task)(engine); });
    return answer.get();
  }
  // What runs and waits, for /slots. On the engine's thread only.
  std::vector<SlotInfo> inspect() const;

  // What a slot, of max_running, holds; null while it is answering. On the
  // engine's thread only.
  SlotContent* content_of(int slot);

  // Of these adapters' ids, those that nothing under way uses; requests that
  // name one of them later fail. Waits as ask() does.
  std::vector<int> retire_adapters(const std::vector<int>& ids);

  bool asleep() const {  // memory was given back, until the next request
    return asleep_.load(std::memory_order_relaxed);
  }
  int64_t context() const {
    return options_.context;
  }
  const ServiceOptions& options() const {
    return options_;
  }

  // Ends the thread; what still runs is cancelled.
  void stop();

 private:
  struct Running;
  struct Figures;
  struct Submission {
    std::vector<GenerationRequest> requests;
    PartSink sink;
    std::shared_ptr<GenerationHandle> handle;
    std::chrono::steady_clock::time_point arrived;
  };

  void check(const GenerationRequest& request) const;
  void check_size(const std::vector<GenerationRequest>& requests) const;
  void loop();
  void start(Submission submission);
  void begin(Submission& submission, size_t index);
  SequenceOptions sequence_options(Running& running) const;
  void take_slot(Running& running) const;
  void check_adapters(const AdapterChoice& choice) const;
  void step();
  void take(Running& running, const Event& event);
  void end(Running& running, FinishReason finish);
  void deliver_end(const PartSink& sink, GenerationPart part);
  void forget(const Running& running);
  void fail_all(const std::exception_ptr& failure);
  void drop_cancelled();
  void end_late();
  void fall_asleep();
  void publish();

  Engine& engine_;
  const Tokenizer& tokenizer_;
  std::vector<int32_t> eos_;
  ServiceOptions options_;
  int64_t vocab_size_;
  std::unique_ptr<Figures> figures_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Submission> submissions_;
  std::deque<std::function<void(Engine&)>> work_;
  bool stopping_ = false;
  std::atomic<int> in_flight_{0};
  std::atomic<bool> asleep_{false};
  std::chrono::steady_clock::time_point last_request_ =
      std::chrono::steady_clock::now();

  std::vector<std::unique_ptr<Running>> running_;  // by sequence, ascending
  std::vector<SlotContent> slots_;                 // of those that have ended
  std::set<int> retired_;  // ids of adapters that the model lacks now
  std::thread thread_;
};

}  // namespace mlxcel::server
