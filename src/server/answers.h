// A handler's side of generations: submit, then await the parts.
#pragma once

#include "http/message.h"
#include "server/routes.h"

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace mlxcel::server {

// Cancels what still runs when the handler ends.
class Answers {
 public:
  Answers(
      const App& app,
      http::Response& response,
      std::vector<GenerationRequest> requests);
  ~Answers();
  Answers(const Answers&) = delete;
  Answers& operator=(const Answers&) = delete;

  // co_await answers.next(): the next part of any of them, nothing once the
  // client is gone. Throws a generation's failure.
  http::Task<std::optional<GenerationPart>> next();
  bool all_ended() const {
    return ended_ == count_;
  }

 private:
  size_t count_;
  size_t ended_ = 0;
  std::shared_ptr<http::Mailbox<GenerationPart>> box_;
  std::shared_ptr<GenerationHandle> handle_;
};

// Freed memory that the process still holds goes back to the system.
void give_memory_back();

// What `read` makes of the request's body. A long one is read on a thread that
// may block: its tokens take a while, and other connections share this one.
template <typename Function>
http::Task<std::invoke_result_t<Function&>> read_aside(
    const http::Request& request, http::Response& response, Function read) {
  constexpr size_t kLongBody = size_t(64) << 10;
  if (request.body.size() <= kLongBody) {
    co_return read();
  }
  // What reading a huge body took stays with the process otherwise, once more
  // for each thread that did so.
  constexpr size_t kHugeBody = size_t(1) << 20;
  auto tidy = [&read, huge = request.body.size() > kHugeBody] {
    struct After {
      bool huge;
      ~After() {
        if (huge) {
          give_memory_back();
        }
      }
    } after{huge};
    return read();
  };
  auto result = co_await http::background(response.executor(), tidy);
  co_return std::move(result);
}

// What `question` makes of the engine between two steps. Nothing when the
// client is gone; what it throws is thrown here.
template <typename T>
http::Task<std::optional<T>> ask_engine(
    const App& app,
    http::Response& response,
    std::function<T(Engine&)> question) {
  struct Outcome {
    std::optional<T> value;
    std::exception_ptr failure;
  };
  auto box = response.mailbox<Outcome>();
  app.service.on_engine([box, question](Engine& engine) {
    Outcome outcome;
    try {
      outcome.value = question(engine);
    } catch (...) {
      outcome.failure = std::current_exception();
    }
    box->push(std::move(outcome));
  });
  std::optional<Outcome> outcome = co_await box->next();
  if (outcome && outcome->failure) {
    std::rethrow_exception(outcome->failure);
  }
  co_return outcome ? std::move(outcome->value) : std::nullopt;
}

// Awaits all ends: one whole part a request, in order. Empty when the client is
// gone.
http::Task<std::vector<GenerationPart>> collect(Answers& answers, size_t count);

// An event under the name of its type. False when the client is gone.
http::Task<bool> send_event(
    http::Response& response, const nlohmann::json& event);

// One request's whole answer. Nothing when the client is gone.
http::Task<std::optional<GenerationPart>> whole_answer(
    const App& app, http::Response& response, GenerationRequest request);

// Sends the events that `events_of` makes of each part until all have ended or
// the client is gone.
http::Task<> send_parts(
    Answers& answers,
    http::Response& response,
    const std::function<std::vector<nlohmann::json>(const GenerationPart&)>&
        events_of);

// Facts for the access log. Several answers of one request count together;
// `new_prompt`: no other one of them counts the same prompt.
void log_generation(
    http::Response& response, const GenerationEnd& end, bool new_prompt = true);

// llama-server's "timings".
nlohmann::json timings_of(const GenerationEnd& end);

}  // namespace mlxcel::server
