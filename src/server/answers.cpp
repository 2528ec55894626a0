#include "server/answers.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <iterator>

namespace mlxcel::server {

using nlohmann::json;

Answers::Answers(
    const App& app,
    http::Response& response,
    std::vector<GenerationRequest> requests)
    : count_(requests.size()), box_(response.mailbox<GenerationPart>()) {
  auto box = box_;
  handle_ = app.service.submit(std::move(requests), [box](GenerationPart part) {
    box->push(std::move(part));
  });
  auto handle = handle_;
  response.on_cancel([handle] { handle->cancel(); });
}

Answers::~Answers() {
  if (handle_) {
    handle_->cancel();
  }
}

http::Task<std::optional<GenerationPart>> Answers::next() {
  std::optional<GenerationPart> part = co_await box_->next();
  if (part && part->end) {
    ++ended_;
    if (part->end->failure) {
      std::rethrow_exception(part->end->failure);
    }
  }
  co_return part;
}

namespace {

template <typename T>
void append(std::vector<T>& to, std::vector<T>& from) {
  to.insert(
      to.end(),
      std::make_move_iterator(from.begin()),
      std::make_move_iterator(from.end()));
}

}  // namespace

http::Task<std::vector<GenerationPart>> collect(
    Answers& answers, size_t count) {
  std::vector<GenerationPart> whole(count);
  while (!answers.all_ended()) {
    std::optional<GenerationPart> part = co_await answers.next();
    if (!part) {
      co_return std::vector<GenerationPart>();
    }
    GenerationPart& target = whole[part->index];
    target.index = part->index;
    target.slot = part->slot;
    target.text += part->text;
    append(target.tokens, part->tokens);
    append(target.logprobs, part->logprobs);
    append(target.prompt_logprobs, part->prompt_logprobs);
    target.end = std::move(part->end);
  }
  co_return whole;
}

void give_memory_back() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

http::Task<bool> send_event(
    http::Response& response, const nlohmann::json& event) {
  std::string name = event["type"].get<std::string>();
  std::string text = http::dump_json(event);
  bool sent = co_await response.write(http::event(text, name));
  co_return sent;
}

http::Task<std::optional<GenerationPart>> whole_answer(
    const App& app, http::Response& response, GenerationRequest request) {
  std::vector<GenerationRequest> requests;
  requests.push_back(std::move(request));
  Answers answers(app, response, std::move(requests));
  std::vector<GenerationPart> parts = co_await collect(answers, 1);
  if (parts.empty()) {
    co_return std::nullopt;
  }
  log_generation(response, *parts[0].end);
  co_return std::move(parts[0]);
}

http::Task<> send_parts(
    Answers& answers,
    http::Response& response,
    const std::function<std::vector<json>(const GenerationPart&)>& events_of) {
  while (!answers.all_ended()) {
    std::optional<GenerationPart> part = co_await answers.next();
    if (!part) {
      co_return;
    }
    if (part->end) {
      log_generation(response, *part->end);
    }
    std::vector<json> events = events_of(*part);
    for (const json& event : events) {
      bool sent = co_await send_event(response, event);
      if (!sent) {
        co_return;
      }
    }
  }
}

void log_generation(
    http::Response& response, const GenerationEnd& end, bool new_prompt) {
  auto known = [&](const char* name) -> const json* {
    for (const auto& [field, value] : response.log_fields()) {
      if (field == name) {
        return &value;
      }
    }
    return nullptr;
  };
  auto add = [&](const char* name, int64_t amount) {
    const json* before = known(name);
    response.log_field(
        name, amount + (before ? before->get<int64_t>() : int64_t(0)));
  };
  add("prompt_tokens", new_prompt ? end.prompt_tokens : 0);
  add("cached_tokens", new_prompt ? end.cached_tokens : 0);
  add("tokens", int64_t(end.tokens.size()));
  if (known("first_token_ms") == nullptr) {
    response.log_field(
        "first_token_ms",
        int64_t(1000 * (end.queue_seconds + end.prompt_seconds)));
  }
}

json timings_of(const GenerationEnd& end) {
  auto per = [](double amount, double count) {
    return count > 0 ? amount / count : 0.0;
  };
  double prompt_ms = 1000 * end.prompt_seconds;
  double decode_ms = 1000 * end.decode_seconds;
  int64_t evaluated = end.prompt_tokens - end.cached_tokens;
  int64_t drawn = int64_t(end.tokens.size());
  // The first token belongs to the prompt's time.
  double decoded = double(std::max<int64_t>(drawn - 1, 0));
  return {
      {"cache_n", end.cached_tokens},
      {"prompt_n", evaluated},
      {"prompt_ms", prompt_ms},
      {"prompt_per_token_ms", per(prompt_ms, double(evaluated))},
      {"prompt_per_second", per(1000.0 * double(evaluated), prompt_ms)},
      {"predicted_n", drawn},
      {"predicted_ms", decode_ms},
      {"predicted_per_token_ms", per(decode_ms, decoded)},
      {"predicted_per_second", per(1000.0 * decoded, decode_ms)},
  };
}

}  // namespace mlxcel::server
