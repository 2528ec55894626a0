// What the service takes in: requests that can run, as far as there is room.
#include "core/error.h"
#include "engine/stop_strings.h"
#include "http/failure.h"
#include "server/figures.h"
#include "server/prompt_length.h"
#include "server/service.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace mlxcel::server {

using http::Failure;

namespace {

// Every token is held against all of them, on the thread of all answers.
void check_stops(const std::vector<std::string>& stops) {
  constexpr size_t kMost = 128, kMostBytes = size_t(16) << 10;
  size_t bytes = 0;
  for (const std::string& stop : stops) {
    bytes += stop.size();
  }
  if (stops.size() > kMost || bytes > kMostBytes) {
    throw Failure::bad_request(
        cat("there are ",
            stops.size(),
            " stop strings of ",
            bytes,
            " bytes; at most ",
            kMost,
            " of ",
            kMostBytes,
            " bytes together are looked for"),
        "stop");
  }
  StopStrings valid(stops);
}

}  // namespace

void Service::check(const GenerationRequest& request) const {
  if (request.prompt.empty()) {
    throw Failure::bad_request(
        "the prompt is empty: it has no token, so there is nothing to continue",
        "prompt");
  }
  int64_t length = int64_t(request.prompt.size());
  if (options_.context > 0 && length > options_.context) {
    refuse_prompt_tokens(length, options_.context, false);
  }
  auto check_token = [&](int32_t token, const char* field) {
    if (token < 0 || token >= vocab_size_) {
      throw Failure::bad_request(
          cat("token ",
              token,
              " is outside the vocabulary of ",
              vocab_size_,
              " tokens"),
          field);
    }
  };
  for (int32_t token : request.prompt) {
    check_token(token, "prompt");
  }
  for (const auto& [token, bias] : request.sampling.logit_bias) {
    check_token(token, "logit_bias");
  }
  if (int64_t(request.sampling.logit_bias.size()) > vocab_size_) {
    throw Failure::bad_request(
        "'logit_bias' has more entries than the vocabulary has tokens",
        "logit_bias");
  }
  mlxcel::check(request.sampling);
  check_stops(request.stops);
}

void Service::check_count(size_t answers) const {
  int limit = options_.max_running + options_.max_queued;
  if (answers > size_t(limit)) {
    throw Failure::bad_request(
        cat("the request asks for ",
            answers,
            " answers; at most ",
            limit,
            " (--parallel and --max-queue-depth together) run or wait here: "
            "send several requests"));
  }
}

// An answer that is not streamed stays in memory until its end.
void Service::check_size(const std::vector<GenerationRequest>& requests) const {
  constexpr int64_t kMostEntries = int64_t(1) << 20;
  int64_t entries = 0;
  for (const GenerationRequest& request : requests) {
    int64_t prompt = int64_t(request.prompt.size());
    int64_t room = std::max<int64_t>(0, options_.context - prompt);
    // Without a shift the context ends the answer, whatever it asked for.
    bool bounded = options_.context > 0 && !options_.context_shift;
    int64_t answer = request.max_tokens;
    if (answer < 0 || (bounded && answer > room)) {
      answer = room;
    }
    if (request.logprobs >= 0 && !request.stream) {
      entries += (request.logprobs + 1) * std::min(answer, kMostEntries);
    }
    if (request.logprobs >= 0 && request.prompt_logprobs) {
      entries += (request.logprobs + 1) * prompt;
    }
  }
  if (entries > kMostEntries) {
    throw Failure::bad_request(
        cat("the answer may hold ",
            entries,
            " log-probabilities, more than ",
            kMostEntries,
            "; ask for fewer alternatives or tokens, or for a stream"));
  }
}

std::shared_ptr<GenerationHandle> Service::submit(
    std::vector<GenerationRequest> requests, PartSink sink) {
  check_count(requests.size());
  for (const GenerationRequest& request : requests) {
    check(request);
  }
  check_size(requests);
  int limit = options_.max_running + options_.max_queued;
  auto handle = std::make_shared<GenerationHandle>();
  {
    std::lock_guard lock(mutex_);
    bool full = in_flight_ + int(requests.size()) > limit;
    if (full || stopping_) {
      figures_->refused.add();
      Failure failure(
          503,
          "unavailable_error",
          stopping_ ? std::string("the server is stopping")
                    : cat("the queue is full: ",
                          in_flight_.load(),
                          " of at most ",
                          limit,
                          " sequences run or wait"));
      failure.retry_after = 1;
      throw failure;
    }
    in_flight_ += int(requests.size());
    submissions_.push_back(
        {std::move(requests),
         std::move(sink),
         handle,
         std::chrono::steady_clock::now()});
  }
  wake_.notify_one();
  return handle;
}

}  // namespace mlxcel::server
