// What requests are promised beyond their answers: defaults of the server,
// names of models and adapters, slots, the log.
#include "server/running_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <stdexcept>
#include <thread>

namespace mlxcel {
namespace {

using nlohmann::json;
using testing::Answer;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::RunningServer;
using testing::TemporaryFolder;

struct ContractTest : ::testing::Test {
  TemporaryFolder folder;
  std::string model = folder.path("model");

  ContractTest() {
    testing::write_random_model(model);
  }
  std::string adapter(const std::string& name, int seed) {
    std::filesystem::path path = folder.path(name);
    std::filesystem::create_directories(path.parent_path());
    testing::write_random_adapter(path, seed);
    return path;
  }
  // Why the server did not start.
  std::string refusal(const std::vector<std::string>& flags) const {
    try {
      RunningServer server(model, flags);
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "it started";
  }
};

const json kTurns = {{{"role", "user"}, {"content", "hi"}}};

json tool() {
  return {
      {"name", "find_place"},
      {"parameters",
       {{"type", "object"}, {"properties", {{"q", {{"type", "string"}}}}}}}};
}

TEST_F(ContractTest, ARuleOfTheServerHoldsOnEveryRoute) {
  RunningServer server(model, {"--grammar", "root ::= \"yes\" | \"no\""});
  auto is_answer = [](const json& text) {
    return text == "yes" || text == "no";
  };
  json chat = {{"messages", kTurns}, {"max_tokens", 20}};
  EXPECT_TRUE(is_answer(server.post("/v1/chat/completions", chat)
                            .json()["choices"][0]["message"]["content"]));
  EXPECT_TRUE(is_answer(
      server.post("/v1/messages", chat).json()["content"][0]["text"]));
  EXPECT_TRUE(is_answer(
      server.post("/v1/responses", {{"input", "hi"}, {"max_output_tokens", 20}})
          .json()["output"][0]["content"][0]["text"]));
  EXPECT_TRUE(is_answer(
      server.post("/completion", {{"prompt", "hi"}, {"n_predict", 20}})
          .json()["content"]));
  // Not where the request has a rule of its own.
  json format = {{"type", "json_schema"}, {"schema", {{"const", 7}}}};
  chat["output_config"] = {{"format", format}};
  EXPECT_EQ(
      server.post("/v1/messages", chat).json()["content"][0]["text"], "7");
}

TEST_F(ContractTest, ASchemaThatIsNullIsMissing) {
  RunningServer server(model);
  json format = {{"type", "json_schema"}, {"schema", nullptr}};
  json nested = {{"type", "json_schema"}, {"json_schema", format}};
  const std::pair<const char*, json> kRequests[] = {
      {"/v1/chat/completions",
       {{"messages", kTurns}, {"max_tokens", 2}, {"response_format", nested}}},
      {"/v1/completions",
       {{"prompt", "a"}, {"max_tokens", 2}, {"response_format", nested}}},
      {"/v1/responses",
       {{"input", "hi"},
        {"max_output_tokens", 2},
        {"text", {{"format", format}}}}},
      {"/v1/messages",
       {{"messages", kTurns},
        {"max_tokens", 2},
        {"output_config", {{"format", format}}}}}};
  for (const auto& [path, body] : kRequests) {
    Answer answer = server.post(path, body);
    EXPECT_EQ(answer.status, 400) << path;
    EXPECT_THAT(answer.body, HasSubstr("has no \\\"schema\\\"")) << path;
  }
}

TEST_F(ContractTest, TemplatesShowTheToolsThatChatsSee) {
  RunningServer server(model);
  json body = {
      {"messages", kTurns},
      {"tools", {{{"type", "function"}, {"function", tool()}}}}};
  Answer shown = server.post("/apply-template", body);
  ASSERT_EQ(shown.status, 200) << shown.body;
  std::string prompt = shown.json()["prompt"];
  EXPECT_THAT(prompt, HasSubstr("find_place"));
  json counted = server.post("/v1/chat/completions/input_tokens", body).json();
  json tokens = server.post("/tokenize", {{"content", prompt}}).json();
  EXPECT_EQ(counted["input_tokens"], tokens["tokens"].size());
}

TEST_F(ContractTest, ResponsesNameTheShapeOfTheirTools) {
  RunningServer server(model);
  for (const json& wrong :
       {json({{"type", "web_search"}}),
        json({{"type", "function"}, {"function", tool()}})}) {
    Answer answer =
        server.post("/v1/responses", {{"input", "hi"}, {"tools", {wrong}}});
    EXPECT_EQ(answer.status, 400);
    EXPECT_THAT(
        answer.json()["error"]["message"].get<std::string>(),
        HasSubstr(R"({"type": "function", "name": ...)"));
  }
}

TEST_F(ContractTest, NamesOfModelsMayHaveSlashes) {
  RunningServer server(
      model, {"--alias", "org/model", "--lora", adapter("sql", 1)});
  for (const char* name :
       {"org/model", "org%2Fmodel", "org/model:sql", "org%2Fmodel%3Asql"}) {
    Answer answer = server.get(std::string("/v1/models/") + name);
    EXPECT_EQ(answer.status, 200) << name;
    EXPECT_THAT(
        answer.json()["id"].get<std::string>(),
        ::testing::StartsWith("org/model"));
  }
  EXPECT_EQ(server.get("/v1/models/org/other").status, 404);
  EXPECT_EQ(server.get("/v1/models/org").status, 404);
}

TEST_F(ContractTest, APathEndsAtNoNul) {
  std::string sql = adapter("adapters/sql", 1);
  RunningServer server(model, {"--lora-dir", folder.path("adapters")});
  Answer answer = server.send(
      "POST",
      "/v1/load_lora_adapter",
      R"({"lora_name":"x","lora_path":"sql\u0000other"})");
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.json()["error"]["param"], "lora_path");
  EXPECT_EQ(server.get("/lora-adapters").json().size(), 0u);
}

TEST_F(ContractTest, AdaptersAreToldApartByTheirTaskNames) {
  std::string one = adapter("x/sql", 1), other = adapter("y/sql", 2);
  EXPECT_THAT(
      refusal({"--lora", one + "," + other}),
      HasSubstr("two adapters have the task_name 'sql'"));
  EXPECT_THAT(
      refusal({"--lora", adapter("a\nb", 1)}),
      HasSubstr("holds control characters"));
  RunningServer server(model, {"--lora", one + "," + one});
  json list = server.get("/lora-adapters").json();
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0]["task_name"], "sql");
  EXPECT_EQ(list[1]["task_name"], "sql-2");
}

TEST_F(ContractTest, ThereAreAsManySlotsAsParallelSays) {
  RunningServer server(model, {"--parallel", "2", "--max-queue-depth", "8"});
  std::vector<std::thread> threads;
  for (int i = 0; i < 5; ++i) {
    threads.emplace_back([&] {
      server.post(
          "/completion",
          {{"prompt", "hello"}, {"n_predict", 300}, {"temperature", 0}});
    });
  }
  bool both = false;
  while (!both) {
    json slots = server.get("/slots").json();
    ASSERT_EQ(slots.size(), 2u);
    EXPECT_EQ(slots[0]["id"], 0);
    EXPECT_EQ(slots[1]["id"], 1);
    both = slots[0]["is_processing"] && slots[1]["is_processing"];
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST_F(ContractTest, TheLogCountsEveryPromptOnce) {
  RunningServer server(model, {"--log-json"});
  Answer answer = server.post(
      "/v1/completions",
      {{"prompt", {"one", "two and more"}}, {"n", 2}, {"max_tokens", 3}});
  ASSERT_EQ(answer.status, 200) << answer.body;
  std::string log;
  size_t place = log.npos;
  while (place == log.npos) {
    log = server.log();
    place = log.find("{\"method\":\"POST\",\"path\":\"/v1/completions\"");
    if (place != log.npos && log.find('\n', place) == log.npos) {
      place = log.npos;
    }
  }
  json line = json::parse(log.substr(place, log.find('\n', place) - place));
  json usage = answer.json()["usage"];
  EXPECT_EQ(line["prompt_tokens"], usage["prompt_tokens"]);
  EXPECT_EQ(line["tokens"], usage["completion_tokens"]);
}

TEST_F(ContractTest, AnEstimateCountsTheServersSettings) {
  auto estimate = [&](std::vector<std::string> flags) {
    std::vector<std::string> words = {
        "serve", "--model", model, "--estimate-memory", "--parallel", "2"};
    words.insert(words.end(), flags.begin(), flags.end());
    return testing::run_program(words).out;
  };
  EXPECT_THAT(
      estimate({"--kv-cache-budget", "50MiB"}), HasSubstr("KV cache 52.4 MB"));
  EXPECT_NE(
      estimate({"-c", "1024", "--no-prompt-cache"}),
      estimate({"-c", "4096", "--no-prompt-cache"}));
}

TEST_F(ContractTest, TooLittleKvCacheForTheSlotsIsSaid) {
  std::string bytes = std::to_string(int64_t(1) << 30);
  int64_t block = 0;
  {
    RunningServer roomy(model, {"--kv-cache-budget", bytes});
    EXPECT_THAT(roomy.log(), Not(HasSubstr("for each of")));
    json stats = roomy.get("/v1/cache/stats").json();
    block = (int64_t(1) << 30) / stats["kv_blocks_limit"].get<int64_t>();
  }
  // 8 blocks of 64 positions for 4 slots.
  RunningServer tight(
      model,
      {"--parallel", "4", "--kv-cache-budget", std::to_string(8 * block)});
  EXPECT_THAT(tight.log(), HasSubstr("512 positions, 128 for each of 4 slots"));
}

TEST_F(ContractTest, AWrongHeadroomFactorEndsTheStart) {
  testing::ProgramResult result = testing::run_program(
      {"serve", "--model", model, "--port", "0"},
      {.environment = {"MLXCEL_HEADROOM_FACTOR=x"}});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("MLXCEL_HEADROOM_FACTOR"));
}

}  // namespace
}  // namespace mlxcel
