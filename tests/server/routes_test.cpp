// Every route of the server's contract, each with what it answers.
#include "server/chain_server.h"

#include <gmock/gmock.h>

namespace mlxcel {
namespace {

using nlohmann::json;
using testing::Answer;

struct RoutesTest : testing::ChainServer {};

struct Route {
  const char* method;
  const char* path;
  const char* body = "";
  int status = 200;
  const char* has = "";  // of the answer
};

constexpr const char* kChat =
    R"({"messages":[{"role":"user","content":">"}],"max_tokens":2})";
constexpr const char* kMessages =
    R"({"messages":[{"role":"user","content":">"}]})";
constexpr const char* kStored = "stored responses";

const Route kRoutes[] = {
    {"GET", "/lora-adapters", "", 200, "[]"},
    {"POST", "/lora-adapters", "[]", 200, "\"success\":true"},
    {"POST", "/lora-adapters", "{}", 400, "Request body must be an array"},
    {"POST", "/completion", R"({"prompt":">","n_predict":2})", 200, "timings"},
    {"POST", "/completions", R"({"prompt":">","n_predict":2})", 200, "id_slot"},
    {"GET", "/", "", 200, R"({"status":"ok"})"},
    {"GET", "/health", "", 200, R"({"status":"ok"})"},
    {"GET", "/v1/health", "", 200, R"({"status":"ok"})"},
    {"GET", "/models", "", 200, "\"chain\""},
    {"GET", "/v1/models", "", 200, "\"chain\""},
    {"GET", "/v1/models/chain", "", 200, "\"chain\""},
    {"POST", "/v1/chat/completions", kChat, 200, "chat.completion"},
    {"POST", "/chat/completions", kChat, 200, "chat.completion"},
    // A BOS and the message.
    {"POST",
     "/v1/chat/completions/input_tokens",
     kChat,
     200,
     "\"input_tokens\":2"},
    {"POST",
     "/chat/completions/input_tokens",
     kChat,
     200,
     "\"input_tokens\":2"},
    {"POST", "/v1/chat/completions/control", "{}", 501, "not built"},
    {"POST",
     "/v1/completions",
     R"({"prompt":">","max_tokens":2})",
     200,
     "text_completion"},
    {"POST",
     "/v1/responses",
     R"({"input":">","max_output_tokens":2})",
     200,
     "\"response\""},
    {"POST",
     "/responses",
     R"({"input":">","max_output_tokens":2})",
     200,
     "\"response\""},
    {"POST",
     "/v1/responses/input_tokens",
     R"({"input":">"})",
     200,
     "\"input_tokens\":2"},
    {"POST",
     "/responses/input_tokens",
     R"({"input":">"})",
     200,
     "\"input_tokens\":2"},
    {"GET", "/v1/responses/a", "", 501, kStored},
    {"DELETE", "/v1/responses/a", "", 501, kStored},
    {"POST", "/v1/responses/a/cancel", "", 501, kStored},
    {"GET", "/responses/a", "", 501, kStored},
    {"POST", "/v1/messages", kChat, 200, "\"message\""},
    {"POST", "/v1/messages/count_tokens", kMessages, 200, "\"input_tokens\":2"},
    {"POST", "/v1/embeddings", R"({"input":"a"})", 501, "embedding"},
    {"POST", "/embedding", "{}", 501, "embedding"},
    {"POST", "/embeddings", "{}", 501, "embedding"},
    {"POST", "/rerank", "{}", 501, "reranker"},
    {"POST", "/reranking", "{}", 501, "reranker"},
    {"POST", "/v1/rerank", "{}", 501, "reranker"},
    {"POST", "/v1/reranking", "{}", 501, "reranker"},
    {"POST", "/tokenize", R"({"content":"a"})", 200, R"({"tokens":[97]})"},
    {"POST", "/detokenize", R"({"tokens":[97]})", 200, R"({"content":"a"})"},
    {"POST", "/apply-template", kMessages, 200, "prompt"},
    {"POST", "/infill", "{}", 501, "fill-in-the-middle"},
    {"GET", "/props", "", 200, "total_slots"},
    {"POST", "/props", "{}", 501, "--props"},
    {"GET", "/slots", "", 200, "is_processing"},
    {"GET", "/slots?fail_on_no_slot=1", "", 200, "is_processing"},
    {"POST", "/slots/0?action=save", "{}", 501, "--slot-save-path"},
    {"GET", "/metrics", "", 501, "--metrics"},
    {"GET", "/v1/cache/stats", "", 200, "hit_rate"},
    {"POST", "/v1/cache/reset", "", 200, "success"},
    {"POST", "/models", "{}", 501, "router"},
    {"DELETE", "/models", "", 501, "router"},
    {"POST", "/models/load", "{}", 501, "router"},
    {"POST", "/models/unload", "{}", 501, "router"},
    {"GET", "/models/sse", "", 501, "router"},
    {"GET", "/router/stats", "", 501, "router"},
    {"GET", "/v1/settings", "", 501, "live settings"},
    {"GET", "/v1/stream", "", 501, "resumable"},
    {"GET", "/v1/streams/lookup", "", 501, "resumable"},
    {"GET", "/v1/internal/mtp-policy", "", 501, "speculative"},
    {"POST", "/v1/audio/speech", "{}", 501, "audio"},
    {"POST", "/v1/audio/transcriptions", "{}", 501, "audio"},
    {"POST", "/v1/audio/translations", "{}", 501, "audio"},
    {"GET", "/tools", "", 403, "feature_disabled"},
    {"POST", "/cors-proxy", "", 403, "feature_disabled"},
    {"POST",
     "/v1/load_lora_adapter",
     R"({"lora_name":"a","lora_path":"a"})",
     501,
     "--lora-dir"},
    {"GET", "/openapi.json", "", 200, "\"openapi\""},
    {"GET", "/nothing", "", 404, "not_found_error"}};

TEST_F(RoutesTest, EachAnswersAsDescribed) {
  for (const Route& route : kRoutes) {
    SCOPED_TRACE(std::string(route.method) + " " + route.path);
    Answer answer = server->send(route.method, route.path, route.body);
    EXPECT_EQ(answer.status, route.status) << answer.body;
    EXPECT_THAT(answer.body, ::testing::HasSubstr(route.has));
    if (route.status == 501) {
      EXPECT_EQ(answer.json()["error"]["type"], "not_supported_error");
    }
  }
}

TEST_F(RoutesTest, FieldsWithoutAnEquivalentNeedTheirNeutralValue) {
  struct Field {
    const char* name;
    json neutral, other;
  };
  const Field fields[] = {
      {"n_cmpl", 1, 2},
      {"n_indent", 0, 1},
      {"t_max_predict_ms", 0, 5},
      {"return_progress", false, true},
      {"verbose", false, true},
      {"n_keep", 0, 1},
      {"mirostat", 0, 1}};
  for (const Field& field : fields) {
    json body = {
        {"prompt", ">"}, {"n_predict", 1}, {field.name, field.neutral}};
    EXPECT_EQ(server->post("/completion", body).status, 200) << field.name;
    body[field.name] = field.other;
    Answer answer = server->post("/completion", body);
    EXPECT_EQ(answer.status, 400) << field.name;
    EXPECT_THAT(answer.body, ::testing::HasSubstr(field.name));
  }
}

TEST_F(RoutesTest, OpenAiRoutesTakeWhatChangesNothing) {
  struct Field {
    const char* name;
    json neutral, other;
  };
  const json order = {
      "penalties", "dry", "top_k", "top_p", "min_p", "xtc", "temperature"};
  const json upstream = {
      "penalties",
      "dry",
      "top_n_sigma",
      "top_k",
      "typ_p",
      "top_p",
      "min_p",
      "xtc",
      "temperature"};
  const Field fields[] = {
      {"modalities", {"text"}, {"text", "audio"}},
      {"verbosity", "medium", "high"},
      {"typical_p", 1, 0.5},
      {"n_keep", 0, 1},
      {"mirostat", 0, 2},
      {"dynatemp_range", 0.0, 0.5},
      {"samplers", order, {"top_k"}},
      {"samplers", upstream, {"temperature", "top_k"}},
      {"samplers", "edskypmxt", "kt"},
      {"skip_special_tokens", true, false},
      {"spaces_between_special_tokens", true, false},
      {"include_stop_str_in_output", false, true},
      {"min_tokens", 0, 2},
      {"stop_token_ids", json::array(), {5}},
      {"best_of", 1, 3},
      {"echo", false, true},
      {"continue_final_message", false, true},
      {"add_special_tokens", false, true},
      {"use_beam_search", false, true},
      {"length_penalty", 1.0, 2.0},
      {"functions", json::array(), {{{"name", "f"}}}}};
  json chat = json::parse(kChat);
  for (const Field& field : fields) {
    json body = chat;
    body[field.name] = field.neutral;
    Answer answer = server->post("/v1/chat/completions", body);
    EXPECT_EQ(answer.status, 200) << field.name << answer.body;
    body[field.name] = field.other;
    answer = server->post("/v1/chat/completions", body);
    EXPECT_EQ(answer.status, 400) << field.name;
    EXPECT_THAT(answer.body, ::testing::HasSubstr(field.name));
  }
  chat["add_generation_prompt"] = true;
  EXPECT_EQ(server->post("/v1/chat/completions", chat).status, 200);
  json text = {{"prompt", ">"}, {"max_tokens", 1}, {"samplers", upstream}};
  for (const json& fields :
       {json{{"min_tokens", 0}, {"stop_token_ids", json::array()}},
        json{{"skip_special_tokens", true}, {"add_special_tokens", true}}}) {
    json body = text;
    body.update(fields);
    EXPECT_EQ(server->post("/v1/completions", body).status, 200) << fields;
  }
  EXPECT_EQ(server->post("/v1/completions", text).status, 200);
  text["samplers"] = {"top_k"};
  EXPECT_EQ(server->post("/v1/completions", text).status, 400);
}

// Fields of the official clients' request types at values that ask for nothing,
// beside values that ask for what this server does not do.
TEST_F(RoutesTest, ClientsMaySendWhatAsksForNothing) {
  struct Field {
    const char* path;
    const char* name;
    json neutral, other;
  };
  const char* chat = "/v1/chat/completions";
  const char* responses = "/v1/responses";
  const char* messages = "/v1/messages";
  const char* count = "/v1/messages/count_tokens";
  const json cleared = {
      {"edits", {{{"type", "clear_tool_uses_20250919"}, {"keep", 1}}}}};
  const json kept = {
      {"edits", {{{"type", "clear_thinking_20251015"}, {"keep", "all"}}}}};
  const Field fields[] = {
      {chat, "n", 1, 0},
      {chat, "store", false, true},
      {chat, "functions", json::array(), {{{"name", "f"}}}},
      {chat, "function_call", "none", {{"name", "f"}}},
      {chat, "prompt_cache_options", {{"ttl", "30m"}}, nullptr},
      {chat, "prediction", {{"type", "content"}, {"content", "x"}}, nullptr},
      {chat, "service_tier", "auto", "flex"},
      {responses, "n", 1, 2},
      {responses, "store", false, true},
      {responses, "background", false, true},
      {responses, "truncation", "disabled", "auto"},
      {responses, "top_logprobs", 0, 2},
      {responses, "context_management", json::array(), {{{"type", "x"}}}},
      {responses, "reasoning", {{"mode", "standard"}}, nullptr},
      {responses, "parallel_tool_calls", true, "yes"},
      {responses, "tools", json::array(), "f"},
      {responses, "stream_options", nullptr, {{"include_usage", true}}},
      {messages, "tools", json::array(), "f"},
      {messages, "tools", json::array(), {{"name", "f"}}},
      {messages, "output_config", json::object(), "low"},
      {messages, "output_config", {{"effort", "low"}}, {{"task_budget", 9}}},
      {count, "output_config", {{"effort", "low"}}, {{"effort", 9}}},
      {messages, "n", 1, 2},
      {messages, "speed", "standard", "fast"},
      {messages, "mcp_servers", json::array(), {{{"name", "x"}}}},
      {messages, "fallbacks", json::array(), {{{"model", "x"}}}},
      {messages, "context_management", {{"edits", json::array()}}, cleared},
      {messages, "context_management", kept, cleared},
      {messages, "user_profile_id", "x", nullptr},
      {count, "betas", {"x"}, nullptr},
      {count, "speed", "standard", "fast"},
      {count, "context_management", kept, cleared}};
  for (const Field& field : fields) {
    SCOPED_TRACE(std::string(field.path) + " " + field.name);
    json body = json::parse(kChat);
    if (field.path == responses) {
      body = {{"input", "#"}, {"max_output_tokens", 4}};
    } else if (field.path == count) {
      body.erase("max_tokens");
    }
    for (const json& value : {json(), field.neutral}) {
      body[field.name] = value;
      Answer answer = server->post(field.path, body);
      EXPECT_EQ(answer.status, 200) << value << answer.body;
    }
    if (!field.other.is_null()) {
      body[field.name] = field.other;
      Answer answer = server->post(field.path, body);
      EXPECT_EQ(answer.status, 400) << answer.body;
      const json& other = field.other;
      bool inner =
          other.is_object() && std::string(field.name) == "output_config";
      EXPECT_THAT(
          answer.body,
          ::testing::HasSubstr(
              inner ? other.begin().key() : std::string(field.name)));
    }
  }
  json streamed = {{"input", "#"}, {"max_output_tokens", 4}, {"stream", true}};
  streamed["stream_options"] = {{"include_obfuscation", false}};
  EXPECT_EQ(server->post(responses, streamed).status, 200);
  streamed["stream_options"] = {{"pace", 1}};
  EXPECT_EQ(server->post(responses, streamed).status, 400);
}

TEST_F(RoutesTest, TopPOfZeroTakesTheBestToken) {
  for (int seed = 0; seed < 8; ++seed) {
    json body = {
        {"prompt", "#"},
        {"top_p", 0},
        {"min_p", 0},
        {"top_k", 0},
        {"temperature", 1000},
        {"seed", seed}};
    json answer = server->post("/v1/completions", body).json();
    EXPECT_EQ(answer["choices"][0]["text"], "uvw-klm") << answer;
  }
}

TEST_F(RoutesTest, EveryNameOfTheLimitIsTaken) {
  auto drawn = [&](const char* route, const char* field, int value) {
    json body = {{"temperature", 0}, {field, value}};
    if (std::string(route) == "/v1/completions") {
      body["prompt"] = "#";
    } else {
      body["messages"] = {{{"role", "user"}, {"content", "#"}}};
    }
    Answer answer = server->post(route, body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.json()["usage"]["completion_tokens"].get<int>();
  };
  for (const char* route : {"/v1/chat/completions", "/v1/completions"}) {
    EXPECT_EQ(drawn(route, "n_predict", 3), 3) << route;
    EXPECT_EQ(drawn(route, "n_predict", 0), 1) << route;
    EXPECT_EQ(drawn(route, "max_tokens", 0), 0) << route;
  }
}

}  // namespace
}  // namespace mlxcel
