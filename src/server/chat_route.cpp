// POST /v1/chat/completions.
#include "core/error.h"
#include "server/chat_message.h"
#include "server/chat_plan.h"
#include "server/logprobs.h"
#include "server/openai.h"
#include "server/request_fields.h"
#include "server/routes.h"

#include <algorithm>
#include <utility>

namespace mlxcel::server {

using nlohmann::json;

namespace {

struct Chat {
  GenerationRequest generation;
  size_t n = 1;
  StreamOptions stream;
  std::string id = new_id("chatcmpl-");
  int64_t created = unix_time();
  std::string model;
  ChatPlan plan;
};

void read_limits(Body& body, const App& app, GenerationRequest& generation) {
  int64_t limit = read_predicted(body, app.model.defaults.max_tokens);
  limit = body.integer("max_tokens", limit, -1);
  generation.max_tokens = body.integer("max_completion_tokens", limit, -1);
}

void read_logprobs(Body& body, GenerationRequest& generation) {
  bool wanted = body.flag("logprobs", false);
  int64_t top = body.integer("top_logprobs", 0, 0, 20);
  if (!wanted && top > 0) {
    Body::refuse("top_logprobs", "needs \"logprobs\": true");
  }
  generation.logprobs = wanted ? int(top) : -1;
}

Chat read_chat(
    const App& app,
    const http::Request& request,
    TextUse use = TextUse::prompt) {
  const auto [object, raw] = parse_object(request.body);
  Body body(object);
  Chat chat;
  GenerationRequest& generation = chat.generation;
  generation.adapters = read_adapters(body, app.model, app.adapters);
  chat.model = body.text("model").value_or(app.model.alias);
  read_sampling(body, app.model, generation);
  read_limits(body, app, generation);
  read_logprobs(body, generation);
  chat.n = size_t(body.integer("n", 1, 1, 128));
  chat.stream = read_stream_options(body);
  generation.stream = chat.stream.stream;
  ignore_client_fields(body);
  check_vllm_fields(body);
  body.neutral("best_of", {1, chat.n}, "every answer is returned");
  body.neutral("echo", {false});
  body.neutral(
      "continue_final_message",
      {false},
      "a last message of the assistant is gone on from without it");
  body.neutral("add_special_tokens", {false}, "the template writes them");
  body.neutral("function_call", {"auto", "none"}, "use tool_choice");
  body.neutral("functions", {json::array()}, "use tools");
  read_native_sampling(body, app.model, generation);
  // Changes how fast an answer comes, not the answer.
  body.ignore({"prediction"});
  body.neutral("modalities", {json::array({"text"})}, "answers are texts");
  body.neutral("verbosity", {"medium"}, "templates know no such setting");
  AnswerWishes wishes = read_answer_wishes(body, raw, app.model);
  ChatInput input = read_chat_input(body, raw, app.model);
  input.use = use;
  if (std::optional<std::string> effort = body.text("reasoning_effort")) {
    input.kwargs["reasoning_effort"] = *effort;
  }
  body.finish();
  chat.plan = plan_chat(std::move(input), wishes, app.model);
  apply_plan(chat.plan, generation);
  return chat;
}

std::vector<GenerationRequest> choices_of(const Chat& chat) {
  std::vector<GenerationRequest> out(chat.n, chat.generation);
  for (size_t i = 0; i < out.size(); ++i) {
    out[i].sampling.seed += i;
  }
  return out;
}

json logprobs_of(const App& app, const Chat& chat, const GenerationPart& part) {
  if (chat.generation.logprobs < 0) {
    return nullptr;
  }
  return {
      {"content", logprobs_json(app.model, part.logprobs)},
      {"refusal", nullptr}};
}

json envelope(const Chat& chat, const char* object) {
  return {
      {"id", chat.id},
      {"object", object},
      {"created", chat.created},
      {"model", chat.model},
      {"choices", json::array()}};
}

json chunk_of(const Chat& chat, size_t index, const json& delta) {
  json chunk = envelope(chat, "chat.completion.chunk");
  chunk["choices"].push_back(
      {{"index", index},
       {"delta", delta},
       {"logprobs", nullptr},
       {"finish_reason", nullptr}});
  if (chat.stream.include_usage) {
    chunk["usage"] = nullptr;
  }
  return chunk;
}

http::Task<> stream_chat(
    const App& app, const Chat& chat, http::Response& response) {
  Answers answers(app, response, choices_of(chat));
  response.start_events();
  for (size_t i = 0; i < chat.n; ++i) {
    json first = chunk_of(chat, i, {{"role", "assistant"}, {"content", ""}});
    bool sent = co_await write_chunk(response, first);
    if (!sent) {
      co_return;
    }
  }
  std::vector<GenerationEnd> ends(chat.n);
  std::vector<ChatMessage> messages;
  for (size_t i = 0; i < chat.n; ++i) {
    messages.emplace_back(chat.plan.output);
  }
  while (!answers.all_ended()) {
    std::optional<GenerationPart> part = co_await answers.next();
    if (!part) {
      co_return;
    }
    ChatMessage& message = messages[part->index];
    std::vector<ChatDelta> deltas =
        message.push(part->text, part->end.has_value());
    if (deltas.empty() && !part->logprobs.empty()) {
      deltas.emplace_back();
    }
    json logprobs = logprobs_of(app, chat, *part);
    for (const ChatDelta& delta : deltas) {
      json chunk = chunk_of(
          chat,
          part->index,
          delta_json(delta, app.model.answers.reasoning_alias));
      chunk["choices"][0]["logprobs"] = std::exchange(logprobs, json(nullptr));
      bool sent = co_await write_chunk(response, chunk);
      if (!sent) {
        co_return;
      }
    }
    if (part->end) {
      json chunk = chunk_of(chat, part->index, json::object());
      chunk["choices"][0]["finish_reason"] =
          chat_finish_reason(message, part->end->stop);
      chunk["timings"] = timings_of(*part->end);
      log_generation(response, *part->end, part->index == 0);
      ends[part->index] = std::move(*part->end);
      bool sent = co_await write_chunk(response, chunk);
      if (!sent) {
        co_return;
      }
    }
  }
  json last = envelope(chat, "chat.completion.chunk");
  json usage = usage_of(ends, chat.n);
  co_await end_stream(response, chat.stream, last, usage);
}

http::Task<> answer_chat(
    const App& app, const http::Request& request, http::Response& response) {
  auto read = [&] { return read_chat(app, request); };
  Chat chat = co_await read_aside(request, response, read);
  app.service.check_count(chat.n);
  if (chat.stream.stream) {
    co_await stream_chat(app, chat, response);
    co_return;
  }
  Answers answers(app, response, choices_of(chat));
  std::vector<GenerationPart> parts = co_await collect(answers, chat.n);
  if (parts.empty()) {
    co_return;
  }
  json body = envelope(chat, "chat.completion");
  std::vector<GenerationEnd> ends;
  for (GenerationPart& part : parts) {
    ChatMessage message(chat.plan.output);
    message.push(part.text, true);
    body["choices"].push_back(
        {{"index", part.index},
         {"message", message_json(message, app.model.answers.reasoning_alias)},
         {"logprobs", logprobs_of(app, chat, part)},
         {"finish_reason", chat_finish_reason(message, part.end->stop)}});
    log_generation(response, *part.end, part.index == 0);
    ends.push_back(std::move(*part.end));
  }
  body["usage"] = usage_of(ends, chat.n);
  body["timings"] = timings_of(ends[0]);
  response.send_json(200, body);
}

http::Task<> count_tokens(
    const App& app, const http::Request& request, http::Response& response) {
  auto read = [&] {
    return read_chat(app, request, TextUse::count).generation.prompt.size();
  };
  size_t tokens = co_await read_aside(request, response, read);
  response.send_json(200, input_tokens_json(tokens));
}

}  // namespace

void add_chat_routes(http::Router& router, const App& app) {
  http::Route route;
  route.method = "POST";
  route.style = http::ErrorStyle::openai;
  route.handler = [&app](
                      const http::Request& request, http::Response& response) {
    return answer_chat(app, request, response);
  };
  router.add({"/v1/chat/completions", "/chat/completions"}, route);
  route.handler = [&app](
                      const http::Request& request, http::Response& response) {
    return count_tokens(app, request, response);
  };
  router.add(
      {"/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"},
      route);
}

}  // namespace mlxcel::server
