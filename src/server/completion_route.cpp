// POST /completion, /completions: llama-server's own form.
#include "core/error.h"
#include "server/answers.h"
#include "server/chat_plan.h"
#include "server/logprobs.h"
#include "server/request_fields.h"
#include "server/routes.h"

#include <algorithm>

namespace mlxcel::server {

using http::Failure;
using nlohmann::json;

namespace {

struct CompletionRequest {
  std::vector<GenerationRequest> generations;  // one a prompt
  bool many = false;  // the prompts came as a list: so do the answers
  bool stream = false;
  bool return_tokens = false;
  std::vector<std::string> response_fields;
};

void refuse_native(Body& body) {
  body.neutral("n_cmpl", {1});
  body.neutral("n_indent", {0});
  body.neutral("return_progress", {false});
  body.neutral("verbose", {false});
  body.neutral("timings_per_token", {false});
  body.neutral("post_sampling_probs", {false});
  body.neutral("id_slot", {-1});
  body.neutral(
      "image_data",
      {json::array()},
      "the model was loaded without a vision tower");
}

CompletionRequest read_request(const App& app, const http::Request& request) {
  const auto [object, raw] = parse_object(request.body);
  Body body(object);
  CompletionRequest out;
  GenerationRequest base;
  base.adapters = read_adapters(body, app.model, app.adapters);
  read_sampling(body, app.model, base);
  base.grammar = read_grammar(body, raw, app.model);
  // 0 gives one token, as llama-server does.
  int64_t limit = read_predicted(
      body, body.integer("max_tokens", app.model.defaults.max_tokens, -1));
  base.max_tokens = limit == 0 ? 1 : limit;
  out.stream = base.stream = body.flag("stream", false);
  int64_t probs = body.integer("n_probs", 0, 0, app.model.vocab_size);
  base.logprobs = probs > 0 ? int(probs) : -1;
  out.return_tokens = body.flag("return_tokens", false);
  out.response_fields = body.texts("response_fields");
  const json* prompt = body.find("prompt");
  if (prompt == nullptr) {
    Body::refuse("prompt", "is missing; give the text to continue");
  }
  std::vector<std::vector<int32_t>> prompts = read_prompts(*prompt, 1, app);
  out.many = prompt->is_array() &&
             std::none_of(prompt->begin(), prompt->end(), [](const json& part) {
               return part.is_number();
             });
  read_native_sampling(body, app.model, base);
  refuse_native(body);
  body.finish();
  for (std::vector<int32_t>& tokens : prompts) {
    out.generations.push_back(base);
    out.generations.back().prompt = std::move(tokens);
  }
  return out;
}

json settings_of(const GenerationRequest& request) {
  const SamplingParams& p = request.sampling;
  json bias = json::array();
  for (const auto& [token, amount] : p.logit_bias) {
    bias.push_back(
        {{"token", token},
         {"bias", std::isfinite(amount) ? json(amount) : json(false)}});
  }
  json out = sampling_json(p);
  out.update({
      {"n_predict", request.max_tokens},
      {"seed", p.seed},
      {"dry_multiplier", p.dry_multiplier},
      {"dry_base", p.dry_base},
      {"dry_allowed_length", p.dry_allowed_length},
      {"dry_penalty_last_n", p.dry_last_n},
      {"xtc_probability", p.xtc_probability},
      {"xtc_threshold", p.xtc_threshold},
      {"logit_bias", bias},
      {"stop", request.stops},
      {"ignore_eos", request.ignore_eos},
      {"n_probs", std::max(request.logprobs, 0)},
      {"stream", request.stream},
  });
  return out;
}

const char* stop_type(StopKind stop) {
  switch (stop) {
    case StopKind::eos:
      return "eos";
    case StopKind::length:
      return "limit";
    case StopKind::stop_string:
      return "word";
    default:
      return "none";
  }
}

// The fields that were asked for, by "a/b" paths.
json only(const json& whole, const std::vector<std::string>& paths) {
  if (paths.empty()) {
    return whole;
  }
  json out = json::object();
  for (const std::string& path : paths) {
    const json* value = &whole;
    size_t begin = 0;
    while (value != nullptr && begin <= path.size()) {
      size_t end = std::min(path.find('/', begin), path.size());
      std::string key = path.substr(begin, end - begin);
      value =
          value->is_object() && value->contains(key) ? &(*value)[key] : nullptr;
      begin = end + 1;
    }
    if (value != nullptr) {
      out[path.substr(path.rfind('/') + 1)] = *value;
    }
  }
  return out;
}

// The last object of an answer. `content` is empty in a stream, whose pieces
// were sent.
json result_of(
    const App& app,
    const CompletionRequest& request,
    const GenerationPart& part,
    std::string content) {
  const GenerationRequest& generation = request.generations[part.index];
  const GenerationEnd& end = *part.end;
  int64_t drawn = int64_t(end.tokens.size());
  // As llama-server: the context ended the answer, or was shifted.
  bool asked = generation.max_tokens >= 0 && drawn >= generation.max_tokens;
  bool full = end.stop == StopKind::length && !asked &&
              end.prompt_tokens + drawn >= app.model.context;
  json tokens = json::array();
  if (request.return_tokens) {
    tokens = request.stream ? json(part.tokens) : json(end.tokens);
  }
  json out = {
      {"index", part.index},
      {"content", std::move(content)},
      {"tokens", tokens},
      {"id_slot", part.slot},
      {"stop", true},
      {"model", app.model.alias},
      {"tokens_predicted", drawn},
      {"tokens_evaluated", end.prompt_tokens},
      {"generation_settings", settings_of(generation)},
      {"prompt", app.model.tokenizer->decode(generation.prompt, false)},
      {"has_new_line", false},
      {"truncated", full || end.shifted_tokens > 0},
      {"stop_type", stop_type(end.stop)},
      {"stopping_word", end.stopping_word},
      // The last token is drawn, not computed.
      {"tokens_cached",
       end.prompt_tokens + std::max<int64_t>(drawn - 1, 0) -
           end.shifted_tokens},
      {"timings", timings_of(end)},
  };
  std::string text = app.model.tokenizer->decode(end.tokens, true);
  out["has_new_line"] = text.find('\n') != std::string::npos;
  if (generation.logprobs >= 0 && !request.stream) {
    out["completion_probabilities"] = logprobs_json(app.model, part.logprobs);
  }
  return only(out, request.response_fields);
}

http::Task<> stream_answer(
    const App& app,
    const CompletionRequest& request,
    http::Response& response) {
  Answers answers(app, response, request.generations);
  response.start_events();
  while (!answers.all_ended()) {
    std::optional<GenerationPart> part = co_await answers.next();
    if (!part) {
      co_return;
    }
    // The text of the last part goes before the object that ends the answer.
    if (!part->text.empty() || !part->end) {
      json piece = {
          {"index", part->index},
          {"content", part->text},
          {"tokens",
           request.return_tokens ? json(part->tokens) : json::array()},
          {"stop", false},
          {"id_slot", part->slot}};
      if (request.generations[part->index].logprobs >= 0) {
        piece["completion_probabilities"] =
            logprobs_json(app.model, part->logprobs);
      }
      bool sent = co_await response.write(http::event(http::dump_json(piece)));
      if (!sent) {
        co_return;
      }
    }
    if (part->end) {
      log_generation(response, *part->end);
      json result = result_of(app, request, *part, "");
      bool sent = co_await response.write(http::event(http::dump_json(result)));
      if (!sent) {
        co_return;
      }
    }
  }
}

http::Task<> complete(
    const App& app, const http::Request& request, http::Response& response) {
  auto read = [&] { return read_request(app, request); };
  CompletionRequest wanted = co_await read_aside(request, response, read);
  if (wanted.stream) {
    co_await stream_answer(app, wanted, response);
    co_return;
  }
  size_t count = wanted.generations.size();
  Answers answers(app, response, wanted.generations);
  std::vector<GenerationPart> parts = co_await collect(answers, count);
  if (parts.empty()) {
    co_return;
  }
  json results = json::array();
  for (GenerationPart& part : parts) {
    log_generation(response, *part.end);
    results.push_back(result_of(app, wanted, part, part.text));
  }
  response.send_json(200, wanted.many ? results : results[0]);
}

}  // namespace

void add_completion_routes(http::Router& router, const App& app) {
  http::Route route;
  route.method = "POST";
  route.handler = [&app](
                      const http::Request& request, http::Response& response) {
    return complete(app, request, response);
  };
  router.add({"/completion", "/completions"}, route);
}

}  // namespace mlxcel::server
