// A handler's side of generations: submit, then await the parts.
#pragma once

#include "http/message.h"
#include "server/routes.h"

#include <memory>
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

// Awaits all ends: one whole part a request, in order. Empty when the client is
// gone.
http::Task<std::vector<GenerationPart>> collect(Answers& answers, size_t count);

// Facts for the access log.
void log_generation(http::Response& response, const GenerationEnd& end);

// llama-server's "timings".
nlohmann::json timings_of(const GenerationEnd& end);

}  // namespace mlxcel::server
