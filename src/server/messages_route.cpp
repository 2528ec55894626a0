// POST /v1/messages and /v1/messages/count_tokens: Anthropic's Messages API.
#include "core/error.h"
#include "server/chat_message.h"
#include "server/messages_input.h"
#include "server/openai.h"
#include "server/request_fields.h"
#include "server/routes.h"

namespace mlxcel::server {

using nlohmann::json;
using nlohmann::ordered_json;

namespace {

struct MessagesRequest {
  GenerationRequest generation;
  ChatPlan plan;
  bool stream = false;
  std::string id = new_id("msg_");
  std::string model;
};

ChatPlan read_plan(
    Body& body,
    const ordered_json& raw,
    const ServedModel& model,
    TextUse use) {
  AnswerWishes wishes = messages_wishes(raw, model);
  ordered_json converted = {{"messages", messages_conversation(raw, model)}};
  json messages = converted;
  Body inner(messages);
  ChatInput input = read_chat_input(inner, converted, model);
  input.use = use;
  if (const json* thinking = body.find("thinking")) {
    Body options(*thinking, "thinking");
    std::string type = options.text("type").value_or("");
    wishes.reasoning_budget =
        options.integer("budget_tokens", wishes.reasoning_budget, 0);
    options.ignore({"display"});
    options.finish();
    if (type != "enabled" && type != "disabled" && type != "adaptive") {
      Body::refuse("thinking", "must be of the type enabled or disabled");
    }
    // The name that templates of thinking models use.
    input.kwargs["enable_thinking"] = type != "disabled";
  }
  if (const json* output = body.find("output_config")) {
    Body members(*output, "output_config");
    members.ignore({"format"});
    if (std::optional<std::string> effort = members.text("effort")) {
      input.kwargs["reasoning_effort"] = *effort;
    }
    members.finish();
  }
  body.ignore({"messages", "system", "tools", "tool_choice"});
  return plan_chat(std::move(input), wishes, model);
}

// What tells the provider who asks, or how it should bill, store and route; and
// fields that have to stand at the value that changes nothing.
void pass_client_fields(Body& body) {
  body.ignore(
      {"metadata",
       "service_tier",
       "container",
       "betas",
       "cache_control",
       "inference_geo",
       "billing_policy",
       "diagnostics",
       "user_profile_id",
       "workspace_id"});
  body.neutral("n", {1}, "a message is one answer");
  body.neutral("speed", {"standard"});
  body.neutral("mcp_servers", {json::array()});
  body.neutral("fallbacks", {json::array()});
  // Edits that keep everything are none.
  const json* context = body.find("context_management");
  if (context == nullptr) {
    return;
  }
  Body inner(*context, "context_management");
  const json* edits = inner.find("edits");
  inner.finish();
  for (const json& edit : edits ? *edits : json::array()) {
    if (!edit.is_object() || edit.value("keep", json()) != "all") {
      Body::refuse(
          "context_management",
          "is not supported: this server takes nothing out of conversations; "
          "leave it out");
    }
  }
}

MessagesRequest read_request(const App& app, const http::Request& request) {
  const auto [object, raw] = parse_object(request.body);
  Body body(object);
  MessagesRequest out;
  GenerationRequest& generation = out.generation;
  generation.adapters = read_adapters(body, app.model, app.adapters);
  out.model = body.text("model").value_or(app.model.alias);
  read_sampling(body, app.model, generation);
  if (body.find("max_tokens") == nullptr) {
    Body::refuse(
        "max_tokens", "is missing; give the most tokens to answer with");
  }
  generation.max_tokens = body.integer("max_tokens", -1, 1);
  for (std::string& stop : body.texts("stop_sequences")) {
    generation.stops.push_back(std::move(stop));
  }
  out.stream = generation.stream = body.flag("stream", false);
  pass_client_fields(body);
  out.plan = read_plan(body, raw, app.model, TextUse::prompt);
  body.finish();
  apply_plan(out.plan, generation);
  return out;
}

const char* stop_reason(const ChatMessage& message, StopKind stop) {
  switch (stop) {
    case StopKind::length:
      return "max_tokens";
    case StopKind::stop_string:
      return "stop_sequence";
    default:
      return message.calls().empty() ? "end_turn" : "tool_use";
  }
}

json stop_sequence(const GenerationEnd& end) {
  return end.stop == StopKind::stop_string ? json(end.stopping_word)
                                           : json(nullptr);
}

json usage_json(const GenerationEnd& end) {
  return {
      {"input_tokens", end.prompt_tokens - end.cached_tokens},
      {"cache_read_input_tokens", end.cached_tokens},
      {"cache_creation_input_tokens", 0},
      {"output_tokens", end.tokens.size()}};
}

json message_json(const MessagesRequest& request) {
  return {
      {"id", request.id},
      {"type", "message"},
      {"role", "assistant"},
      {"model", request.model},
      {"content", json::array()},
      {"stop_reason", nullptr},
      {"stop_sequence", nullptr}};
}

// A call's arguments as the object that clients expect.
json input_json(const std::string& arguments) {
  json parsed = json::parse(arguments, nullptr, false);
  return parsed.is_object() ? parsed : json::object();
}

json whole_message(
    const MessagesRequest& request,
    const ChatMessage& message,
    const GenerationEnd& end) {
  json out = message_json(request);
  if (!message.reasoning().empty()) {
    out["content"].push_back(
        {{"type", "thinking"},
         {"thinking", message.reasoning()},
         {"signature", ""}});
  }
  if (!message.content().empty() || message.calls().empty()) {
    out["content"].push_back({{"type", "text"}, {"text", message.content()}});
  }
  for (const ToolCall& call : message.calls()) {
    out["content"].push_back(
        {{"type", "tool_use"},
         {"id", call.id},
         {"name", call.name},
         {"input", input_json(call.arguments)}});
  }
  out["stop_reason"] = stop_reason(message, end.stop);
  out["stop_sequence"] = stop_sequence(end);
  out["usage"] = usage_json(end);
  return out;
}

// Blocks of a stream: one is open at a time.
class Blocks {
 public:
  std::vector<json> take(const ChatDelta& delta) {
    std::vector<json> out;
    using Kind = ChatDelta::Kind;
    Open kind = delta.kind == Kind::reasoning ? Open::thinking
                : delta.kind == Kind::content ? Open::text
                                              : Open::call;
    if (open_ != kind || delta.kind == Kind::call) {
      close(&out);
      open_ = kind;
      out.push_back(start(delta));
    }
    if (delta.kind != Kind::call) {
      out.push_back(event("content_block_delta", "delta", piece(delta)));
    }
    return out;
  }

  std::vector<json> finish() {
    std::vector<json> out;
    if (index_ < 0) {  // an answer has at least one block
      open_ = Open::text;
      out.push_back(start({}));
    }
    close(&out);
    return out;
  }

 private:
  enum class Open : uint8_t { none, thinking, text, call };

  json event(const char* type, const char* member, json value) const {
    json out = {{"type", type}, {"index", index_}};
    out[member] = std::move(value);
    return out;
  }

  json start(const ChatDelta& delta) {
    ++index_;
    json block;
    if (open_ == Open::thinking) {
      block = {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}};
    } else if (open_ == Open::text) {
      block = {{"type", "text"}, {"text", ""}};
    } else {
      block = {
          {"type", "tool_use"},
          {"id", delta.id},
          {"name", delta.text},
          {"input", json::object()}};
    }
    return event("content_block_start", "content_block", std::move(block));
  }

  json piece(const ChatDelta& delta) const {
    switch (open_) {
      case Open::thinking:
        return {{"type", "thinking_delta"}, {"thinking", delta.text}};
      case Open::text:
        return {{"type", "text_delta"}, {"text", delta.text}};
      default:
        return {{"type", "input_json_delta"}, {"partial_json", delta.text}};
    }
  }

  void close(std::vector<json>* out) {
    if (open_ != Open::none) {
      out->push_back({{"type", "content_block_stop"}, {"index", index_}});
    }
    open_ = Open::none;
  }

  Open open_ = Open::none;
  int index_ = -1;
};

std::vector<json> part_events(
    ChatMessage& message, Blocks& blocks, const GenerationPart& part) {
  std::vector<json> events;
  auto add = [&](std::vector<json> more) {
    for (json& event : more) {
      events.push_back(std::move(event));
    }
  };
  for (const ChatDelta& delta : message.push(part.text, part.end.has_value())) {
    add(blocks.take(delta));
  }
  if (part.end) {
    add(blocks.finish());
    json delta = {
        {"stop_reason", stop_reason(message, part.end->stop)},
        {"stop_sequence", stop_sequence(*part.end)}};
    events.push_back(
        {{"type", "message_delta"},
         {"delta", std::move(delta)},
         {"usage", usage_json(*part.end)}});
    events.push_back({{"type", "message_stop"}});
  }
  return events;
}

http::Task<> stream_messages(
    const App& app, MessagesRequest& request, http::Response& response) {
  Answers answers(app, response, {request.generation});
  response.start_events();
  ChatMessage message(request.plan.output, "toolu_");
  Blocks blocks;
  json first = message_json(request);
  first["usage"] = {
      {"input_tokens", request.generation.prompt.size()},
      {"cache_read_input_tokens", 0},
      {"cache_creation_input_tokens", 0},
      {"output_tokens", 0}};
  json begin = {{"type", "message_start"}, {"message", std::move(first)}};
  bool begun = co_await send_event(response, begin);
  if (!begun) {
    co_return;
  }
  std::function<std::vector<json>(const GenerationPart&)> events_of =
      [&](const GenerationPart& part) {
        return part_events(message, blocks, part);
      };
  co_await send_parts(answers, response, events_of);
}

http::Task<> answer_messages(
    const App& app, const http::Request& request, http::Response& response) {
  auto read = [&] { return read_request(app, request); };
  MessagesRequest wanted = co_await read_aside(request, response, read);
  if (wanted.stream) {
    co_await stream_messages(app, wanted, response);
    co_return;
  }
  std::optional<GenerationPart> whole =
      co_await whole_answer(app, response, wanted.generation);
  if (!whole) {
    co_return;
  }
  ChatMessage message(wanted.plan.output, "toolu_");
  message.push(whole->text, true);
  json body = whole_message(wanted, message, *whole->end);
  response.send_json(200, body);
}

size_t tokens_of(const App& app, const http::Request& request) {
  const auto [object, raw] = parse_object(request.body);
  Body body(object);
  body.ignore({"model"});
  pass_client_fields(body);
  ChatPlan plan = read_plan(body, raw, app.model, TextUse::count);
  body.finish();
  return plan.prompt.tokens.size();
}

http::Task<> count_tokens(
    const App& app, const http::Request& request, http::Response& response) {
  auto read = [&] { return tokens_of(app, request); };
  size_t tokens = co_await read_aside(request, response, read);
  response.send_json(200, {{"input_tokens", tokens}});
}

}  // namespace

void add_messages_routes(http::Router& router, const App& app) {
  http::Route route;
  route.method = "POST";
  route.path = "/v1/messages";
  route.style = http::ErrorStyle::anthropic;
  route.handler = [&app](
                      const http::Request& request, http::Response& response) {
    return answer_messages(app, request, response);
  };
  router.add(route);
  route.path = "/v1/messages/count_tokens";
  route.handler = [&app](
                      const http::Request& request, http::Response& response) {
    return count_tokens(app, request, response);
  };
  router.add(route);
}

}  // namespace mlxcel::server
