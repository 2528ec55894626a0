// POST /v1/completions: OpenAI's form, with echo and the log-probabilities of
// prompts.
#include "core/error.h"
#include "server/chat_plan.h"
#include "server/openai.h"
#include "server/request_fields.h"
#include "server/routes.h"
#include "text/token_bytes.h"

#include <algorithm>

namespace mlxcel::server {

using nlohmann::json;

namespace {

struct Completions {
  std::vector<GenerationRequest> generations;  // n for each prompt
  std::vector<std::string> prompts;            // their texts, for echo
  size_t n = 1;
  bool echo = false;
  StreamOptions stream;
  std::string id = new_id("cmpl-");
  int64_t created = unix_time();
  std::string model;  // as the client named it
};

Completions read_completions(const App& app, const http::Request& request) {
  const auto [object, raw] = parse_object(request.body);
  Body body(object);
  Completions out;
  GenerationRequest base;
  base.adapters = read_adapters(body, app.model, app.adapters);
  out.model = body.text("model").value_or(app.model.alias);
  read_sampling(body, app.model, base);
  base.grammar = read_grammar(body, raw, app.model);
  base.max_tokens = body.integer(
      "max_tokens", read_predicted(body, app.model.defaults.max_tokens), -1);
  out.n = size_t(body.integer("n", 1, 1, 128));
  out.echo = body.flag("echo", false);
  out.stream = read_stream_options(body);
  base.stream = out.stream.stream;
  if (body.find("logprobs") != nullptr) {
    base.logprobs = int(body.integer("logprobs", 0, 0, app.model.vocab_size));
    base.prompt_logprobs = out.echo;
  }
  body.neutral("best_of", {1, out.n}, "every answer is returned");
  body.neutral("suffix", {""}, "the model cannot fill text in");
  ignore_client_fields(body);
  check_vllm_fields(body);
  body.neutral("add_special_tokens", {true});
  read_native_sampling(body, app.model, base);
  const json* prompt = body.find("prompt");
  if (prompt == nullptr) {
    Body::refuse("prompt", "is missing; give the text to continue");
  }
  std::vector<std::vector<int32_t>> prompts = read_prompts(*prompt, out.n, app);
  body.finish();
  for (const std::vector<int32_t>& tokens : prompts) {
    for (size_t i = 0; i < out.n; ++i) {
      out.generations.push_back(base);
      out.generations.back().prompt = tokens;
      out.generations.back().sampling.seed += i;
    }
    out.prompts.push_back(
        out.echo ? app.model.tokenizer->decode(tokens, true) : std::string());
  }
  return out;
}

// A place in a text that comes in bytes, counted in characters.
class TextPlace {
 public:
  // Where a token with these bytes begins; for the rest of a character, where
  // that one began.
  size_t offset(std::string_view bytes) const {
    bool rest = missing_ > 0 && !bytes.empty() && continues_character(bytes[0]);
    return characters_ - rest;
  }
  void advance(std::string_view bytes) {
    for (char c : bytes) {
      if (missing_ > 0 && continues_character(c)) {
        --missing_;
        continue;
      }
      ++characters_;  // U+FFFD, where a byte begins none
      auto byte = (unsigned char)c;
      missing_ = byte >= 0xF0 ? 3 : byte >= 0xE0 ? 2 : byte >= 0xC2 ? 1 : 0;
    }
  }

 private:
  size_t characters_ = 0;  // that have begun
  int missing_ = 0;        // bytes of the last one
};

// {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
class Logprobs {
 public:
  explicit Logprobs(const ServedModel& model, TextPlace place = {})
      : model_(model), place_(place) {}

  // A token without a probability: the first of a prompt.
  void add_first(int32_t token) {
    add_text(token);
    values_.push_back(nullptr);
    top_.push_back(nullptr);
  }
  void add(const TokenLogprob& entry) {
    std::string text = add_text(entry.token);
    values_.push_back(entry.logprob);
    json top = json::object();
    for (const auto& [token, logprob] : entry.top) {
      std::string piece = model_.piece(token);
      // Bytes of unfinished characters look alike: the likeliest stands.
      if (!top.contains(piece)) {
        top[piece] = logprob;
      }
    }
    top_.push_back(std::move(top));
  }
  json take() {
    return {
        {"tokens", std::move(tokens_)},
        {"token_logprobs", std::move(values_)},
        {"top_logprobs", std::move(top_)},
        {"text_offset", std::move(offsets_)}};
  }
  // Of the next token.
  TextPlace place() const {
    return place_;
  }

 private:
  std::string add_text(int32_t token) {
    std::string bytes = token_bytes(*model_.tokenizer, token);
    std::string text = to_utf8(bytes);
    tokens_.push_back(text);
    offsets_.push_back(place_.offset(bytes));
    // Special tokens are no part of the text.
    if (!model_.tokenizer->is_special(token)) {
      place_.advance(bytes);
    }
    return text;
  }

  const ServedModel& model_;
  TextPlace place_;
  json tokens_ = json::array(), values_ = json::array();
  json top_ = json::array(), offsets_ = json::array();
};

json envelope(const Completions& request) {
  return {
      {"id", request.id},
      {"object", "text_completion"},
      {"created", request.created},
      {"model", request.model},
      {"choices", json::array()}};
}

json whole_logprobs(
    const App& app, const Completions& request, const GenerationPart& part) {
  const GenerationRequest& generation = request.generations[part.index];
  if (generation.logprobs < 0) {
    return nullptr;
  }
  Logprobs out(app.model);
  if (request.echo) {
    out.add_first(generation.prompt[0]);
    for (const TokenLogprob& entry : part.prompt_logprobs) {
      out.add(entry);
    }
  }
  for (const TokenLogprob& entry : part.logprobs) {
    out.add(entry);
  }
  return out.take();
}

http::Task<> stream_completions(
    const App& app, const Completions& request, http::Response& response) {
  Answers answers(app, response, request.generations);
  response.start_events();
  std::vector<GenerationEnd> ends(request.generations.size());
  std::vector<bool> begun(request.generations.size(), false);
  std::vector<TextPlace> places(request.generations.size());
  while (!answers.all_ended()) {
    std::optional<GenerationPart> part = co_await answers.next();
    if (!part) {
      co_return;
    }
    const GenerationRequest& generation = request.generations[part->index];
    json logprobs = nullptr;
    std::string text;
    Logprobs entries(app.model, places[part->index]);
    if (request.echo && !begun[part->index]) {
      text = request.prompts[part->index / request.n];
      if (generation.logprobs >= 0) {
        entries.add_first(generation.prompt[0]);
        for (const TokenLogprob& entry : part->prompt_logprobs) {
          entries.add(entry);
        }
      }
    }
    begun[part->index] = true;
    if (generation.logprobs >= 0) {
      for (const TokenLogprob& entry : part->logprobs) {
        entries.add(entry);
      }
      logprobs = entries.take();
      places[part->index] = entries.place();
    }
    json chunk = envelope(request);
    json choice = {
        {"index", part->index},
        {"text", text + part->text},
        {"logprobs", logprobs},
        {"finish_reason", nullptr}};
    if (part->end) {
      choice["finish_reason"] = finish_reason(part->end->stop);
      log_generation(response, *part->end, part->index % request.n == 0);
      ends[part->index] = std::move(*part->end);
    }
    chunk["choices"].push_back(std::move(choice));
    if (request.stream.include_usage) {
      chunk["usage"] = nullptr;
    }
    bool sent = co_await write_chunk(response, chunk);
    if (!sent) {
      co_return;
    }
  }
  json last = envelope(request);
  json usage = usage_of(ends, request.n);
  co_await end_stream(response, request.stream, last, usage);
}

http::Task<> complete_openai(
    const App& app, const http::Request& request, http::Response& response) {
  auto read = [&] { return read_completions(app, request); };
  Completions wanted = co_await read_aside(request, response, read);
  if (wanted.stream.stream) {
    co_await stream_completions(app, wanted, response);
    co_return;
  }
  size_t count = wanted.generations.size();
  Answers answers(app, response, wanted.generations);
  std::vector<GenerationPart> parts = co_await collect(answers, count);
  if (parts.empty()) {
    co_return;
  }
  json body = envelope(wanted);
  std::vector<GenerationEnd> ends;
  for (GenerationPart& part : parts) {
    const std::string& prompt = wanted.prompts[part.index / wanted.n];
    body["choices"].push_back(
        {{"index", part.index},
         {"text", prompt + part.text},
         {"logprobs", whole_logprobs(app, wanted, part)},
         {"finish_reason", finish_reason(part.end->stop)}});
    log_generation(response, *part.end, part.index % wanted.n == 0);
    ends.push_back(std::move(*part.end));
  }
  body["usage"] = usage_of(ends, wanted.n);
  body["timings"] = timings_of(ends[0]);
  response.send_json(200, body);
}

}  // namespace

void add_openai_completion_routes(http::Router& router, const App& app) {
  http::Route route;
  route.method = "POST";
  route.path = "/v1/completions";
  route.style = http::ErrorStyle::openai;
  route.handler = [&app](
                      const http::Request& request, http::Response& response) {
    return complete_openai(app, request, response);
  };
  router.add(route);
}

}  // namespace mlxcel::server
