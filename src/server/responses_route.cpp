// POST /v1/responses: OpenAI's Responses API without its memory. Nothing is
// stored, so that there is nothing to get, delete or go on from.
#include "core/error.h"
#include "server/chat_message.h"
#include "server/openai.h"
#include "server/request_fields.h"
#include "server/responses_input.h"
#include "server/routes.h"

#include <utility>

namespace mlxcel::server {

using nlohmann::json;
using nlohmann::ordered_json;

namespace {

struct ResponsesRequest {
  GenerationRequest generation;
  ChatPlan plan;
  bool stream = false;
  json echo;  // the members of the answer that repeat the request's
  std::string id = new_id("resp_");
  int64_t created = unix_time();
};

void ignore_fields(Body& body) {
  ignore_client_fields(body);
  body.neutral("n", {1}, "a response is one answer");
  body.neutral("background", {false});
  body.neutral("context_management", {json::array()});
  body.neutral("truncation", {"disabled"});
  body.neutral("previous_response_id", {}, "this server stores no responses");
  body.neutral("conversation", {}, "this server stores no conversations");
  body.neutral("prompt", {}, "this server stores no prompts");
  body.neutral("max_tool_calls", {});
  body.neutral("top_logprobs", {0});
  body.ignore(
      {"include",
       "tools",
       "tool_choice",
       "parallel_tool_calls",
       "input",
       "instructions",
       "personality"});
}

// `reasoning` and `text`, as far as a template or a grammar can follow them.
void read_objects(Body& body, ChatInput& input) {
  if (const json* reasoning = body.find("reasoning")) {
    Body inner(*reasoning, "reasoning");
    if (std::optional<std::string> effort = inner.text("effort")) {
      input.kwargs["reasoning_effort"] = *effort;
    }
    inner.ignore({"summary", "generate_summary"});
    inner.neutral("context", {"auto"});
    inner.neutral("mode", {"standard"});
    inner.finish();
  }
  if (const json* text = body.find("text")) {
    Body inner(*text, "text");
    inner.ignore({"format", "verbosity"});
    inner.finish();
  }
}

json or_null(const ordered_json& raw, const char* name, json fallback) {
  auto found = raw.find(name);
  return found == raw.end() || found->is_null() ? std::move(fallback)
                                                : json(*found);
}

ResponsesRequest read_request(
    const App& app,
    const http::Request& request,
    TextUse use = TextUse::prompt) {
  const auto [object, raw] = parse_object(request.body);
  Body body(object);
  ResponsesRequest out;
  GenerationRequest& generation = out.generation;
  generation.adapters = read_adapters(body, app.model, app.adapters);
  std::string name = body.text("model").value_or(app.model.alias);
  read_sampling(body, app.model, generation);
  generation.max_tokens =
      body.integer("max_output_tokens", app.model.defaults.max_tokens, -1);
  // The last event has the usage, asked for or not.
  out.stream = generation.stream = read_stream_options(body).stream;

  AnswerWishes wishes = responses_wishes(raw, app.model);
  ordered_json converted = {{"messages", responses_messages(raw)}};
  json messages = converted;
  Body inner(messages);
  ChatInput input = read_chat_input(inner, converted, app.model);
  input.use = use;
  read_objects(body, input);
  ignore_fields(body);
  body.finish();
  out.plan = plan_chat(std::move(input), wishes, app.model);
  apply_plan(out.plan, generation);

  const SamplingParams& sampling = generation.sampling;
  out.echo = {
      {"model", name},
      {"instructions", or_null(raw, "instructions", nullptr)},
      {"max_output_tokens", or_null(raw, "max_output_tokens", nullptr)},
      {"metadata", or_null(raw, "metadata", json::object())},
      {"parallel_tool_calls", wishes.parallel},
      {"previous_response_id", nullptr},
      {"reasoning",
       or_null(raw, "reasoning", {{"effort", nullptr}, {"summary", nullptr}})},
      {"store", false},
      {"temperature", sampling.temperature},
      {"text", or_null(raw, "text", {{"format", {{"type", "text"}}}})},
      {"tool_choice", or_null(raw, "tool_choice", "auto")},
      {"tools", or_null(raw, "tools", json::array())},
      {"top_p", sampling.top_p},
      {"truncation", "disabled"},
      {"user", or_null(raw, "user", nullptr)}};
  return out;
}

// The items of an answer, in the order in which they began.
class Items {
 public:
  enum class Kind : uint8_t { reasoning, message, call };
  struct Item {
    Kind kind;
    std::string id;
    std::string text;  // or arguments
    std::string call_id, name;
  };

  // The item that the delta belongs to, and whether it is new.
  std::pair<size_t, bool> take(const ChatDelta& delta) {
    Kind kind = delta.kind == ChatDelta::Kind::reasoning ? Kind::reasoning
                : delta.kind == ChatDelta::Kind::content ? Kind::message
                                                         : Kind::call;
    bool fresh = list_.empty() || list_.back().kind != kind ||
                 delta.kind == ChatDelta::Kind::call;
    if (fresh) {
      const char* prefix = kind == Kind::reasoning ? "rs_"
                           : kind == Kind::message ? "msg_"
                                                   : "fc_";
      list_.push_back({kind, new_id(prefix), {}, {}, {}});
    }
    Item& item = list_.back();
    if (delta.kind == ChatDelta::Kind::call) {
      item.call_id = delta.id;
      item.name = delta.text;
    } else {
      item.text += delta.text;
    }
    return {list_.size() - 1, fresh};
  }
  const std::vector<Item>& list() const {
    return list_;
  }

 private:
  std::vector<Item> list_;
};

json part_json(const Items::Item& item, const std::string& text) {
  if (item.kind == Items::Kind::reasoning) {
    return {{"type", "reasoning_text"}, {"text", text}};
  }
  return {
      {"type", "output_text"},
      {"text", text},
      {"annotations", json::array()},
      {"logprobs", json::array()}};
}

json item_json(const Items::Item& item, const char* status, bool begun) {
  if (item.kind == Items::Kind::call) {
    return {
        {"type", "function_call"},
        {"id", item.id},
        {"call_id", item.call_id},
        {"name", item.name},
        {"arguments", begun ? std::string() : item.text},
        {"status", status}};
  }
  json content = json::array();
  if (!begun) {
    content.push_back(part_json(item, item.text));
  }
  if (item.kind == Items::Kind::reasoning) {
    return {
        {"type", "reasoning"},
        {"id", item.id},
        {"summary", json::array()},
        {"content", std::move(content)},
        {"status", status}};
  }
  return {
      {"type", "message"},
      {"id", item.id},
      {"role", "assistant"},
      {"status", status},
      {"content", std::move(content)}};
}

// The tokens before the answer proper began: the thought and its marks.
int64_t reasoning_tokens(
    const ResponsesRequest& request,
    const GenerationEnd& end,
    const Tokenizer& tokenizer) {
  ChatMessage message(request.plan.output);
  StreamDecoder decoder(tokenizer, true, request.plan.kept_special);
  for (size_t i = 0; i < end.tokens.size(); ++i) {
    message.push(decoder.push(end.tokens[i]), false);
    if (!message.content().empty() || !message.calls().empty()) {
      return message.reasoning().empty() ? 0 : int64_t(i);
    }
  }
  message.push(decoder.finish(), true);
  return message.reasoning().empty() ? 0 : int64_t(end.tokens.size());
}

json usage_json(
    const ResponsesRequest& request,
    const GenerationEnd& end,
    const Tokenizer& tokenizer) {
  int64_t drawn = int64_t(end.tokens.size());
  return {
      {"input_tokens", end.prompt_tokens},
      {"input_tokens_details", {{"cached_tokens", end.cached_tokens}}},
      {"output_tokens", drawn},
      {"output_tokens_details",
       {{"reasoning_tokens", reasoning_tokens(request, end, tokenizer)}}},
      {"total_tokens", end.prompt_tokens + drawn}};
}

const char* status_of(const GenerationEnd* end) {
  return end == nullptr                  ? "in_progress"
         : end->stop == StopKind::length ? "incomplete"
                                         : "completed";
}

json response_json(
    const App& app,
    const ResponsesRequest& request,
    const Items& items,
    const GenerationEnd* end) {
  json out = request.echo;
  out["id"] = request.id;
  out["object"] = "response";
  out["created_at"] = request.created;
  out["status"] = status_of(end);
  out["error"] = nullptr;
  out["incomplete_details"] = nullptr;
  out["output"] = json::array();
  out["usage"] = nullptr;
  if (end != nullptr) {
    bool cut = end->stop == StopKind::length;
    if (cut) {
      out["incomplete_details"] = {{"reason", "max_output_tokens"}};
    }
    for (const Items::Item& item : items.list()) {
      bool last = &item == &items.list().back();
      out["output"].push_back(
          item_json(item, cut && last ? "incomplete" : "completed", false));
    }
    out["usage"] = usage_json(request, *end, *app.model.tokenizer);
  }
  return out;
}

json place_of(const Items::Item& item, size_t index) {
  json out = {{"item_id", item.id}, {"output_index", index}};
  if (item.kind != Items::Kind::call) {
    out["content_index"] = 0;
  }
  return out;
}

json event_json(const char* type, json members) {
  members["type"] = type;
  return members;
}

std::vector<json> begin_events(const Items::Item& item, size_t index) {
  std::vector<json> out;
  out.push_back(event_json(
      "response.output_item.added",
      {{"output_index", index},
       {"item", item_json(item, "in_progress", true)}}));
  if (item.kind != Items::Kind::call) {
    json part = place_of(item, index);
    part["part"] = part_json(item, "");
    out.push_back(event_json("response.content_part.added", part));
  }
  return out;
}

json delta_event(
    const Items::Item& item, size_t index, const std::string& text) {
  json delta = place_of(item, index);
  delta["delta"] = text;
  switch (item.kind) {
    case Items::Kind::call:
      return event_json("response.function_call_arguments.delta", delta);
    case Items::Kind::reasoning:
      return event_json("response.reasoning_text.delta", delta);
    default:
      delta["logprobs"] = json::array();
      return event_json("response.output_text.delta", delta);
  }
}

std::vector<json> end_events(
    const Items::Item& item, size_t index, const char* status) {
  std::vector<json> out;
  json done = place_of(item, index);
  if (item.kind == Items::Kind::call) {
    done["arguments"] = item.text;
    done["name"] = item.name;
    out.push_back(event_json("response.function_call_arguments.done", done));
  } else {
    done["text"] = item.text;
    bool text = item.kind == Items::Kind::message;
    if (text) {
      done["logprobs"] = json::array();
    }
    out.push_back(event_json(
        text ? "response.output_text.done" : "response.reasoning_text.done",
        done));
    json part = place_of(item, index);
    part["part"] = part_json(item, item.text);
    out.push_back(event_json("response.content_part.done", part));
  }
  out.push_back(event_json(
      "response.output_item.done",
      {{"output_index", index}, {"item", item_json(item, status, false)}}));
  return out;
}

std::vector<json> part_events(
    ChatMessage& message, const GenerationPart& part, Items& items) {
  std::vector<json> out;
  auto add = [&](std::vector<json> more) {
    for (json& event : more) {
      out.push_back(std::move(event));
    }
  };
  for (const ChatDelta& delta : message.push(part.text, part.end.has_value())) {
    size_t before = items.list().size();
    auto [index, fresh] = items.take(delta);
    if (fresh) {
      if (before > 0) {
        add(end_events(items.list()[before - 1], before - 1, "completed"));
      }
      add(begin_events(items.list()[index], index));
    }
    if (delta.kind != ChatDelta::Kind::call) {
      out.push_back(delta_event(items.list()[index], index, delta.text));
    }
  }
  if (part.end && !items.list().empty()) {
    size_t last = items.list().size() - 1;
    bool cut = part.end->stop == StopKind::length;
    add(end_events(items.list()[last], last, cut ? "incomplete" : "completed"));
  }
  return out;
}

http::Task<> stream_response(
    const App& app, ResponsesRequest& request, http::Response& response) {
  Answers answers(app, response, {request.generation});
  response.start_events();
  Items items;
  ChatMessage message(request.plan.output);
  int64_t number = 0;
  for (const char* type : {"response.created", "response.in_progress"}) {
    json event = event_json(
        type, {{"response", response_json(app, request, items, nullptr)}});
    event["sequence_number"] = number++;
    bool sent = co_await send_event(response, event);
    if (!sent) {
      co_return;
    }
  }
  std::function<std::vector<json>(const GenerationPart&)> events_of =
      [&](const GenerationPart& part) {
        std::vector<json> events = part_events(message, part, items);
        if (part.end) {
          bool cut = part.end->stop == StopKind::length;
          events.push_back(event_json(
              cut ? "response.incomplete" : "response.completed",
              {{"response", response_json(app, request, items, &*part.end)}}));
        }
        for (json& event : events) {
          event["sequence_number"] = number++;
        }
        return events;
      };
  co_await send_parts(answers, response, events_of);
}

http::Task<> respond(
    const App& app, const http::Request& request, http::Response& response) {
  auto read = [&] { return read_request(app, request); };
  ResponsesRequest wanted = co_await read_aside(request, response, read);
  if (wanted.stream) {
    co_await stream_response(app, wanted, response);
    co_return;
  }
  std::optional<GenerationPart> whole =
      co_await whole_answer(app, response, wanted.generation);
  if (!whole) {
    co_return;
  }
  ChatMessage message(wanted.plan.output);
  Items items;
  for (const ChatDelta& delta : message.push(whole->text, true)) {
    items.take(delta);
  }
  json body = response_json(app, wanted, items, &*whole->end);
  response.send_json(200, body);
}

http::Task<> count_tokens(
    const App& app, const http::Request& request, http::Response& response) {
  auto read = [&] {
    return read_request(app, request, TextUse::count).generation.prompt.size();
  };
  size_t tokens = co_await read_aside(request, response, read);
  response.send_json(200, input_tokens_json(tokens));
}

}  // namespace

void add_responses_routes(http::Router& router, const App& app) {
  http::Route route;
  route.method = "POST";
  route.style = http::ErrorStyle::openai;
  route.handler = [&app](
                      const http::Request& request, http::Response& response) {
    return respond(app, request, response);
  };
  router.add({"/v1/responses", "/responses"}, route);
  route.handler = [&app](
                      const http::Request& request, http::Response& response) {
    return count_tokens(app, request, response);
  };
  router.add({"/v1/responses/input_tokens", "/responses/input_tokens"}, route);
}

}  // namespace mlxcel::server
