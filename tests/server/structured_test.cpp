// Tools, schemas and grammars over HTTP, on each API that has them. The model
// is a chain of bytes that knows nothing of JSON: what fits does so by force.
#include "server/chain_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace mlxcel {
namespace {

using nlohmann::json;
using testing::Answer;

struct StructuredServer : testing::ChainServer {};

const json kParameters = {
    {"type", "object"},
    {"properties",
     {{"unit", {{"enum", {"C", "F"}}}},
      {"days", {{"type", "integer"}, {"minimum", 1}, {"maximum", 9}}}}},
    {"required", {"unit", "days"}},
    {"additionalProperties", false}};

void expect_fits(const json& value) {
  ASSERT_TRUE(value.is_object()) << value;
  EXPECT_EQ(value.size(), 2u) << value;
  EXPECT_TRUE(value["unit"] == "C" || value["unit"] == "F") << value;
  EXPECT_TRUE(value["days"].is_number_integer()) << value;
  EXPECT_GE(value["days"], 1);
  EXPECT_LE(value["days"], 9);
}

json chat_body(int seed) {
  return {
      {"messages", {{{"role", "user"}, {"content", "hi"}}}},
      {"max_tokens", 200},
      {"temperature", 1.5},
      {"seed", seed}};
}

json chat_tools() {
  return {
      {{"type", "function"},
       {"function", {{"name", "weather"}, {"parameters", kParameters}}}}};
}

TEST_F(StructuredServer, SchemasHoldWhateverIsDrawn) {
  std::set<std::string> texts;
  for (int seed = 0; seed < 6; ++seed) {
    json body = chat_body(seed);
    body["response_format"] = {
        {"type", "json_schema"},
        {"json_schema", {{"name", "x"}, {"schema", kParameters}}}};
    Answer answer = server->post("/v1/chat/completions", body);
    ASSERT_EQ(answer.status, 200) << answer.body;
    json choice = answer.json()["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "stop");
    std::string text = choice["message"]["content"];
    expect_fits(json::parse(text));
    texts.insert(text);
  }
  EXPECT_GT(texts.size(), 1u);
}

TEST_F(StructuredServer, CompletionsTakeSchemasAndGrammars) {
  json body = {
      {"prompt", "x"},
      {"n_predict", 200},
      {"temperature", 1.5},
      {"seed", 1},
      {"json_schema", kParameters}};
  Answer answer = server->post("/completion", body);
  ASSERT_EQ(answer.status, 200) << answer.body;
  expect_fits(json::parse(answer.json()["content"].get<std::string>()));
  EXPECT_EQ(answer.json()["stop_type"], "eos");
  body.erase("json_schema");
  body["grammar"] = "root ::= [a-c]{4} \"!\"";
  answer = server->post("/completion", body);
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_THAT(
      answer.json()["content"].get<std::string>(),
      ::testing::MatchesRegex("[a-c][a-c][a-c][a-c]!"));
  body.erase("n_predict");
  body["max_tokens"] = 50;
  answer = server->post("/v1/completions", body);
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_THAT(
      answer.json()["choices"][0]["text"].get<std::string>(),
      ::testing::MatchesRegex("[a-c][a-c][a-c][a-c]!"));
}

TEST_F(StructuredServer, AFormatOfTextLeavesOtherRulesAlone) {
  const json text = {{"type", "text"}}, object = {{"type", "json_object"}};
  const std::string word = R"(root ::= "ab" | "cd")";
  for (const char* route : {"/completion", "/v1/completions"}) {
    SCOPED_TRACE(route);
    json body = {{"prompt", "a"}, {"max_tokens", 9}, {"grammar", word}};
    body["response_format"] = text;
    Answer answer = server->post(route, body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    body["response_format"] = object;
    answer = server->post(route, body);
    EXPECT_EQ(answer.status, 400) << answer.body;
    EXPECT_THAT(answer.body, ::testing::HasSubstr("cannot be joined"));
    body.erase("grammar");
    body["json_schema"] = {{"enum", {"ab", "cd"}}};
    answer = server->post(route, body);
    EXPECT_EQ(answer.status, 400) << answer.body;
    EXPECT_THAT(answer.body, ::testing::HasSubstr("leave one out"));
    body["response_format"] = text;
    answer = server->post(route, body);
    EXPECT_EQ(answer.status, 200) << answer.body;
  }
}

TEST_F(StructuredServer, ForcedCallsStreamAsTheyAreWhole) {
  for (int seed = 0; seed < 4; ++seed) {
    json body = chat_body(seed);
    body["tools"] = chat_tools();
    body["tool_choice"] = "required";
    Answer whole = server->post("/v1/chat/completions", body);
    ASSERT_EQ(whole.status, 200) << whole.body;
    json choice = whole.json()["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "tool_calls");
    ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u) << whole.body;
    json function = choice["message"]["tool_calls"][0]["function"];
    EXPECT_EQ(function["name"], "weather");
    std::string arguments = function["arguments"];
    expect_fits(json::parse(arguments));

    body["stream"] = true;
    std::string name, streamed, finish;
    for (const std::string& event :
         server->post("/v1/chat/completions", body).events()) {
      if (event == "[DONE]") {
        continue;
      }
      json part = json::parse(event)["choices"][0];
      if (part["finish_reason"].is_string()) {
        finish = part["finish_reason"];
      }
      for (const json& call :
           part["delta"].value("tool_calls", json::array())) {
        EXPECT_EQ(call["index"], 0);
        name += call["function"].value("name", "");
        streamed += call["function"].value("arguments", "");
      }
      EXPECT_EQ(part["delta"].value("content", ""), "");
    }
    EXPECT_EQ(name, "weather");
    EXPECT_EQ(streamed, arguments);
    EXPECT_EQ(finish, "tool_calls");
  }
}

TEST_F(StructuredServer, TheOtherApisForceCallsToo) {
  json responses = {
      {"input", "hi"},
      {"max_output_tokens", 200},
      {"tools",
       {{{"type", "function"},
         {"name", "weather"},
         {"parameters", kParameters}}}},
      {"tool_choice", {{"type", "function"}, {"name", "weather"}}}};
  Answer answer = server->post("/v1/responses", responses);
  ASSERT_EQ(answer.status, 200) << answer.body;
  json item = answer.json()["output"][0];
  EXPECT_EQ(item["type"], "function_call");
  EXPECT_EQ(item["name"], "weather");
  expect_fits(json::parse(item["arguments"].get<std::string>()));
  EXPECT_EQ(answer.json()["status"], "completed");

  json messages = {
      {"messages", {{{"role", "user"}, {"content", "hi"}}}},
      {"max_tokens", 200},
      {"tools", {{{"name", "weather"}, {"input_schema", kParameters}}}},
      {"tool_choice", {{"type", "any"}}}};
  answer = server->post("/v1/messages", messages);
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.json()["stop_reason"], "tool_use");
  expect_fits(answer.json()["content"][0]["input"]);
  int64_t input =
      answer.json()["usage"]["input_tokens"].get<int64_t>() +
      answer.json()["usage"]["cache_read_input_tokens"].get<int64_t>();
  messages.erase("max_tokens");
  answer = server->post("/v1/messages/count_tokens", messages);
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.json()["input_tokens"], input);
}

TEST_F(StructuredServer, FaultsAreNamedInTheApisOwnForm) {
  json body = chat_body(0);
  body["response_format"] = {
      {"type", "json_schema"},
      {"json_schema", {{"schema", {{"items", {{"not", json::object()}}}}}}}};
  Answer answer = server->post("/v1/chat/completions", body);
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.json()["error"]["param"], "response_format");
  EXPECT_THAT(
      answer.json()["error"]["message"].get<std::string>(),
      ::testing::HasSubstr("at /items/not"));

  body = chat_body(0);
  body["tool_choice"] = "required";
  answer = server->post("/v1/chat/completions", body);
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.json()["error"]["param"], "tool_choice");

  body = chat_body(0);
  body["grammar"] = "root ::= x";
  answer = server->post("/v1/chat/completions", body);
  EXPECT_EQ(answer.status, 400);
  EXPECT_THAT(
      answer.json()["error"]["message"].get<std::string>(),
      ::testing::HasSubstr("line 1, column 11: there is no rule x"));

  json document = {
      {"max_tokens", 1},
      {"messages",
       {{{"role", "user"},
         {"content", {{{"type", "document"}, {"source", json::object()}}}}}}}};
  answer = server->post("/v1/messages", document);
  EXPECT_EQ(answer.status, 400);
  EXPECT_THAT(
      answer.json()["error"]["message"].get<std::string>(),
      ::testing::HasSubstr("has a document, which this server does not read"));

  answer = server->post("/v1/responses", {{"input", "x"}, {"store", true}});
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.json()["error"]["param"], "store");

  answer = server->post("/v1/messages", {{"messages", json::array()}});
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.json()["type"], "error");
  EXPECT_EQ(answer.json()["error"]["type"], "invalid_request_error");
}

}  // namespace
}  // namespace mlxcel
