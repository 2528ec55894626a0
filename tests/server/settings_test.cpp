// What the server's options change, seen from outside.
#include "server/running_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

namespace mlxcel {
namespace {

using nlohmann::json;
using testing::Answer;
using testing::RunningServer;
using testing::TemporaryFolder;
using Words = std::vector<std::string>;

const std::string kPrompt =
    "The quick brown fox jumps over the lazy dog. The quick brown fox jumps "
    "over the lazy dog. Once more.";

// A template whose answers begin inside a thought.
const std::string kThinking =
    "{% for m in messages %}{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<think>\n{% endif %}{# </think> #}";

struct SettingsTest : ::testing::Test {
  TemporaryFolder folder;
  std::string model = folder.path("model");

  SettingsTest() {
    testing::write_random_model(model);
  }
  // A copy of the model with changes to its config.
  std::string edited(const char* name, const json& changes) const {
    std::string path = folder.path(name);
    std::filesystem::copy(model, path);
    json config = json::parse(text_of(path + "/config.json"));
    config.merge_patch(changes);
    std::ofstream(path + "/config.json") << config;
    return path;
  }
  static json greedy(const json& prompt, int n) {
    return {
        {"prompt", prompt},
        {"n_predict", n},
        {"temperature", 0},
        {"return_tokens", true}};
  }
  static json completion(const RunningServer& server, const json& body) {
    Answer answer = server.post("/completion", body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.json();
  }
  static json chat(const RunningServer& server, json body) {
    body["messages"] = {{{"role", "user"}, {"content", "Why?"}}};
    body["temperature"] = 0;
    Answer answer = server.post("/v1/chat/completions", body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.json()["choices"][0];
  }
  static std::string templated(const RunningServer& server, json body) {
    Answer answer = server.post("/apply-template", body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.json()["prompt"];
  }
  static std::string text_of(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
};

TEST_F(SettingsTest, AFullContextShiftsOrEnds) {
  constexpr size_t kContext = 48, kKeep = 6;
  std::vector<int> start;
  for (int i = 0; i < 20; ++i) {
    start.push_back(33 + i * 3);
  }
  // Piece by piece on a server with room for all.
  std::vector<int> drawn, tokens = start;
  {
    RunningServer server(model, {"--no-prompt-cache"});
    while (drawn.size() < 150) {
      int room = int(kContext - tokens.size());
      json part = completion(server, greedy(tokens, room))["tokens"];
      for (const json& token : part) {
        drawn.push_back(token.get<int>());
        tokens.push_back(token.get<int>());
      }
      size_t dropped = (tokens.size() - kKeep) / 2;
      tokens.erase(tokens.begin() + kKeep, tokens.begin() + kKeep + dropped);
    }
    drawn.resize(150);
  }
  std::string size = std::to_string(kContext);
  RunningServer shifting(
      model,
      {"--max-kv-size",
       size,
       "--context-shift",
       "--keep",
       "6",
       "--deterministic"});
  json answer = completion(shifting, greedy(start, 150));
  EXPECT_EQ(answer["tokens"], json(drawn));
  EXPECT_EQ(answer["truncated"], true);
  EXPECT_EQ(answer["tokens_predicted"], 150);
  EXPECT_EQ(answer["tokens_evaluated"], 20);
  EXPECT_LE(answer["tokens_cached"], kContext);
  // A request has its own choice.
  json other = greedy(start, 150);
  other["n_keep"] = -1;
  EXPECT_NE(completion(shifting, other)["tokens"], json(drawn));

  RunningServer plain(model, {"--max-kv-size", size});
  answer = completion(plain, greedy(start, 150));
  EXPECT_EQ(answer["tokens_predicted"], kContext - 20);
  EXPECT_EQ(answer["stop_type"], "limit");
  EXPECT_EQ(answer["truncated"], true);  // by the full context
  answer = completion(plain, greedy(start, kContext - 20));
  EXPECT_EQ(answer["tokens_predicted"], kContext - 20);
  EXPECT_EQ(answer["truncated"], false);  // the request asked for no more
  EXPECT_EQ(plain.post("/completion", other).status, 400);
}

TEST_F(SettingsTest, ALongAnswerEndsAtItsTime) {
  RunningServer server(
      model,
      {"--context-shift", "--max-kv-size", "64", "--decode-timeout", "1"});
  json answer = completion(server, greedy(kPrompt.substr(0, 20), -1));
  EXPECT_EQ(answer["stop_type"], "limit");  // of time: there is no other
}

TEST_F(SettingsTest, BoundsOnBatchesChangeNoAnswer) {
  std::vector<json> bodies;
  for (int i = 0; i < 6; ++i) {
    bodies.push_back(
        greedy(std::string(size_t(1 + 9 * i), char('a' + i)) + kPrompt, 20));
  }
  std::vector<json> expected;
  {
    RunningServer server(model);
    for (const json& body : bodies) {
      expected.push_back(completion(server, body)["tokens"]);
    }
  }
  const Words kinds[] = {
      {"--max-batch-prefill", "1", "--prefill-chunk-size", "7"},
      {"--max-batch-prefill-tokens", "40", "--prefill-chunk-size", "9"},
      {"-b", "2048", "-ub", "16", "--max-batch-prefill", "2"},
      {"--no-cont-batching"},
      {"--apc-enabled", "false", "--step-time", "0"}};
  for (const Words& flags : kinds) {
    RunningServer server(model, flags);
    std::vector<json> answers(bodies.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < bodies.size(); ++i) {
      threads.emplace_back(
          [&, i] { answers[i] = completion(server, bodies[i])["tokens"]; });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    EXPECT_EQ(answers, expected) << flags[0];
  }
}

TEST_F(SettingsTest, TheBlocksOfTheCacheAreCounted) {
  auto capacity = [&](const Words& flags) {
    RunningServer server(model, flags);
    return server.get("/v1/cache/stats").json();
  };
  // 64 positions of 2 layers with keys and values of 32 floats.
  constexpr int64_t kBlock = 64 * 2 * 2 * 32 * 4;
  json stats = capacity({"--apc-num-blocks", "8", "--apc-block-size", "16"});
  EXPECT_EQ(stats["capacity_bytes"], 2 * kBlock);
  // More blocks than bytes can be counted: the cache's own bytes hold.
  int64_t usual = capacity({})["capacity_bytes"];
  EXPECT_EQ(
      capacity(
          {"--apc-num-blocks",
           std::to_string(int64_t(1) << 40),
           "--apc-block-size",
           std::to_string(1 << 20)})["capacity_bytes"],
      usual);
  EXPECT_EQ(capacity({"--apc-enabled", "false"})["enabled"], false);
  EXPECT_EQ(capacity({"--prompt-cache-enabled=false"})["enabled"], false);
  EXPECT_EQ(
      capacity({"--cache-ram", "1"})["capacity_bytes"],
      (1 << 20) / kBlock * kBlock);
}

TEST_F(SettingsTest, MoreMemoryThanAnIntCountsKeepsTheModelsContext) {
  RunningServer server(
      model,
      {"--kv-cache-budget",
       std::to_string(int64_t(1) << 46),
       "--max-kv-size",
       "100"});
  json settings = server.get("/props").json()["default_generation_settings"];
  EXPECT_EQ(settings["n_ctx"], 100);
}

TEST_F(SettingsTest, TheTemplateOfAnyFileIsShown) {
  const std::string plain = "{{ messages[0].content }}";
  auto shown = [&](const std::string& folder_name) {
    RunningServer server(folder_name);
    return server.get("/props").json()["chat_template"];
  };
  std::string copy = edited("json", json::object());
  std::filesystem::remove(copy + "/chat_template.jinja");
  std::string config_path = copy + "/tokenizer_config.json";
  json config = json::parse(text_of(config_path));
  config["chat_template"] = {
      {{"name", "tool_use"}, {"template", "tools"}},
      {{"name", "default"}, {"template", plain}}};
  std::ofstream(config_path) << config;
  EXPECT_EQ(shown(copy), plain);
  config.erase("chat_template");
  std::ofstream(config_path) << config;
  std::ofstream(copy + "/chat_template.json") << json{{"chat_template", plain}};
  EXPECT_EQ(shown(copy), plain);
}

TEST_F(SettingsTest, ThoughtsEndWithTheirBudget) {
  RunningServer server(
      model, {"--chat-template", kThinking, "--reasoning-budget", "5"});
  json choice = chat(server, {{"max_tokens", 40}});
  std::string thought = choice["message"]["reasoning_content"];
  EXPECT_EQ(thought.size(), 5u);  // a token is a byte
  // 40 tokens less the thought and "</think>".
  EXPECT_EQ(choice["message"]["content"].get<std::string>().size(), 27u);
  EXPECT_EQ(choice["message"]["reasoning"], thought);
  // The request's own; -1 thinks until the end.
  choice = chat(server, {{"max_tokens", 40}, {"reasoning_budget", 9}});
  EXPECT_EQ(
      choice["message"]["reasoning_content"].get<std::string>().size(), 9);
  choice = chat(server, {{"max_tokens", 40}, {"reasoning_budget", -1}});
  EXPECT_EQ(choice["message"]["content"], "");
  // With a schema the answer behind the thought still fits.
  choice = chat(
      server,
      {{"max_tokens", 60},
       {"response_format",
        {{"type", "json_schema"},
         {"json_schema", {{"schema", {{"enum", {"ab", "cd"}}}}}}}}});
  EXPECT_THAT(
      choice["message"]["content"].get<std::string>(),
      ::testing::AnyOf("\"ab\"", "\"cd\""));
  // Anthropic's name for it.
  Answer messages = server.post(
      "/v1/messages",
      {{"max_tokens", 40},
       {"messages", {{{"role", "user"}, {"content", "Why?"}}}},
       {"thinking", {{"type", "enabled"}, {"budget_tokens", 7}}}});
  json blocks = messages.json()["content"];
  EXPECT_EQ(blocks[0]["thinking"].get<std::string>().size(), 7) << blocks;
  // Of 40 tokens the 5 of the thought and "</think>" are none of the answer.
  Answer response = server.post(
      "/v1/responses",
      {{"max_output_tokens", 40}, {"input", "Why?"}, {"temperature", 0}});
  json usage = response.json()["usage"];
  EXPECT_EQ(usage["output_tokens"], 40) << usage;
  EXPECT_EQ(usage["output_tokens_details"]["reasoning_tokens"], 13) << usage;
}

TEST_F(SettingsTest, AnswersWithoutThoughtsCountNone) {
  RunningServer server(model);
  Answer response = server.post(
      "/v1/responses", {{"max_output_tokens", 9}, {"input", "Why?"}});
  json usage = response.json()["usage"];
  EXPECT_EQ(usage["output_tokens_details"]["reasoning_tokens"], 0) << usage;
}

// Whatever is drawn: bytes that are a part of a character, and an end token
// that is a letter as well.
TEST_F(SettingsTest, RulesHoldBehindThoughts) {
  RunningServer server(
      edited("ends", {{"eos_token_id", 'e'}}), {"--chat-template", kThinking});
  json schema = {
      {"response_format",
       {{"type", "json_schema"},
        {"json_schema", {{"schema", {{"enum", {"ab", "cd"}}}}}}}}};
  json grammar = {{"grammar", R"(root ::= "\"" ("ab" | "cd") "\"")"}};
  for (json body : {schema, grammar}) {
    body.update(
        {{"messages", {{{"role", "user"}, {"content", "Why?"}}}},
         {"max_tokens", 300},
         {"temperature", 3},
         {"top_k", 0},
         {"top_p", 1},
         {"min_p", 0}});
    for (int seed = 0; seed < 8; ++seed) {
      SCOPED_TRACE(seed);
      body["seed"] = seed;
      body["reasoning_budget"] = -1;
      Answer answer = server.post("/v1/chat/completions", body);
      ASSERT_EQ(answer.status, 200) << answer.body;
      json choice = answer.json()["choices"][0];
      EXPECT_EQ(choice["finish_reason"], "length") << choice;
      body["reasoning_budget"] = 5;
      answer = server.post("/v1/chat/completions", body);
      ASSERT_EQ(answer.status, 200) << answer.body;
      choice = answer.json()["choices"][0];
      EXPECT_EQ(choice["finish_reason"], "stop");
      EXPECT_THAT(
          choice["message"]["content"].get<std::string>(),
          ::testing::AnyOf("\"ab\"", "\"cd\""));
      // At most the rest of a character above the budget.
      EXPECT_LE(
          choice["message"]["reasoning_content"].get<std::string>().size(), 8);
    }
  }
}

TEST_F(SettingsTest, AThoughtThatTheTemplateNeverClosesHasItsBudget) {
  RunningServer server(
      model,
      {"--chat-template",
       "{% for m in messages %}{{ m.content }}{% endfor %}"
       "{% if add_generation_prompt %}<think>\n{% endif %}"});
  json choice = chat(server, {{"max_tokens", 40}, {"reasoning_budget", 5}});
  EXPECT_EQ(
      choice["message"]["reasoning_content"].get<std::string>().size(), 5);
  EXPECT_EQ(choice["message"]["content"].get<std::string>().size(), 27u);
}

TEST_F(SettingsTest, ThoughtsMayStayInTheText) {
  RunningServer plain(
      model,
      {"--chat-template",
       kThinking,
       "--reasoning-budget",
       "5",
       "--reasoning-alias-field",
       "none"});
  json message = chat(plain, {{"max_tokens", 20}})["message"];
  EXPECT_FALSE(message.contains("reasoning")) << message;
  std::string thought = message["reasoning_content"],
              answer = message["content"];
  RunningServer whole(
      model,
      {"--chat-template",
       kThinking,
       "--reasoning-budget",
       "5",
       "--skip-chat-parsing"});
  message = chat(whole, {{"max_tokens", 20}})["message"];
  EXPECT_FALSE(message.contains("reasoning_content")) << message;
  EXPECT_EQ(message["content"], thought + "</think>" + answer);
}

TEST_F(SettingsTest, TemplatesGetWhatWasAskedFor) {
  const std::string source =
      "{{ enable_thinking }}|{{ reasoning_effort }}|"
      "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
      "{% if add_generation_prompt %}>{% endif %}";
  json user = {{"role", "user"}, {"content", "hi"}};
  json assistant = {{"role", "assistant"}, {"content", "Once"}};
  json one = {{"messages", {user}}}, two = {{"messages", {user, assistant}}};
  {
    RunningServer server(
        model,
        {"--chat-template",
         source,
         "--reasoning",
         "off",
         "--reasoning-effort",
         "low"});
    EXPECT_THAT(
        templated(server, one), ::testing::MatchesRegex("[Ff]alse.low.*"));
    EXPECT_THAT(templated(server, two), ::testing::EndsWith("[user:hi]>Once"));
    json full = two;
    full["add_generation_prompt"] = false;
    EXPECT_THAT(
        templated(server, full), ::testing::EndsWith("[assistant:Once]"));
  }
  RunningServer server(
      model,
      {"--chat-template",
       source,
       "--reasoning",
       "on",
       "--no-prefill-assistant"});
  EXPECT_THAT(templated(server, one), ::testing::MatchesRegex("[Tt]rue.*"));
  EXPECT_THAT(
      templated(server, two),
      ::testing::EndsWith("[user:hi][assistant:Once]>"));
}

TEST_F(SettingsTest, PositionsTurnAsAsked) {
  auto answer = [&](const std::string& path, const Words& flags) {
    RunningServer server(path, flags);
    json out = completion(server, greedy(kPrompt, 24))["tokens"];
    int64_t context =
        server.get("/props").json()["default_generation_settings"]["n_ctx"];
    return std::pair(out, context);
  };
  auto plain = answer(model, {});
  auto base = answer(edited("base", {{"rope_theta", 300.0}}), {});
  auto linear = answer(
      edited(
          "linear",
          {{"rope_scaling", {{"rope_type", "linear"}, {"factor", 4.0}}}}),
      {});
  EXPECT_NE(plain.first, base.first);
  EXPECT_NE(plain.first, linear.first);
  EXPECT_EQ(answer(model, {"--rope-freq-base", "300"}), base);
  auto scaled = answer(model, {"--rope-scale", "4"});
  EXPECT_EQ(scaled.first, linear.first);
  EXPECT_EQ(scaled.second, 4 * plain.second);
  EXPECT_EQ(answer(model, {"--rope-freq-scale", "0.25"}), scaled);
  EXPECT_EQ(answer(folder.path("linear"), {"--rope-scaling", "none"}), plain);
}

TEST_F(SettingsTest, MetricsHaveAPortOfTheirOwn) {
  RunningServer server(model, {"--metrics-port", "0"});
  std::string log = server.log();
  const std::string mark = "Metrics at http://127.0.0.1:";
  size_t place = log.find(mark);
  for (; place == log.npos; place = log.find(mark)) {
    std::this_thread::yield();
    log = server.log();
  }
  int port = std::stoi(log.substr(place + mark.size()));
  completion(server, greedy("a", 3));
  Answer answer = server.get_at(port, "/metrics");
  EXPECT_EQ(answer.status, 200);
  EXPECT_THAT(
      answer.body, ::testing::HasSubstr("mlxcel_generated_tokens_total 3"));
  EXPECT_EQ(server.get_at(port, "/v1/models").status, 404);
  EXPECT_EQ(server.get("/metrics").status, 501);
}

TEST_F(SettingsTest, TheLogGoesWhereItIsTold) {
  std::string file = folder.path("log");
  std::ofstream(file) << "older\n";
  ::chmod(file.c_str(), 0644);
  {
    RunningServer server(
        model, {"--log-file", file, "--log-prefix", "--log-timestamps", "-v"});
    completion(server, greedy("a", 2));
  }
  std::string text = text_of(file);
  EXPECT_THAT(text, ::testing::StartsWith("older\n"));
  EXPECT_THAT(text, ::testing::HasSubstr("Z I POST /completion 200 "));
  EXPECT_THAT(text, ::testing::HasSubstr("Z I KV cache: at most "));
  struct stat info{};
  ASSERT_EQ(::stat(file.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600);
  testing::ProgramResult result = testing::run_program(
      {"serve", "--model", model, "--log-file", folder.path("no/log")});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, ::testing::HasSubstr("--log-file"));
}

TEST_F(SettingsTest, AnIdleServerGivesItsMemoryBack) {
  RunningServer server(model, {"--sleep-idle-seconds", "0"});
  auto asleep = [&] { return server.get("/props").json()["is_sleeping"]; };
  json first = completion(server, greedy(kPrompt, 8))["tokens"];
  while (asleep() != true) {
    std::this_thread::yield();
  }
  json stats = server.get("/v1/cache/stats").json();
  EXPECT_EQ(stats["entries"], 0);
  EXPECT_EQ(stats["kv_blocks_used"], 0);
  EXPECT_EQ(completion(server, greedy(kPrompt, 8))["tokens"], first);
}

// Names in the environment; the command line goes first.
struct Environment {
  Environment(const char* variable, const char* value) : name(variable) {
    ::setenv(name, value, 1);
  }
  ~Environment() {
    ::unsetenv(name);
  }
  const char* name;
};

TEST_F(SettingsTest, TheEnvironmentStandsForOptions) {
  Environment alias("LLAMA_ARG_ALIAS", "named"),
      slots("LLAMA_ARG_N_PARALLEL", "3"), context("LLAMA_ARG_CTX_SIZE", "3000"),
      key("LLAMA_API_KEY", "secret"),
      metrics("LLAMA_ARG_ENDPOINT_METRICS", "1"),
      batch("LLAMA_ARG_BATCH", "100"), predict("LLAMA_ARG_N_PREDICT", "7"),
      port("LLAMA_ARG_PORT", "1"), host("LLAMA_ARG_HOST", "127.0.0.1");
  {
    RunningServer server(model);  // with --port 0
    EXPECT_EQ(server.get("/v1/models").json()["data"][0]["id"], "named");
    EXPECT_EQ(server.get("/props").status, 401);
    EXPECT_EQ(server.post("/completion", greedy("a", 1)).status, 401);
  }
  ::unsetenv("LLAMA_API_KEY");
  RunningServer server(model, {"--alias", "other"});
  EXPECT_EQ(server.get("/v1/models").json()["data"][0]["id"], "other");
  json props = server.get("/props").json();
  EXPECT_EQ(props["total_slots"], 3);
  EXPECT_EQ(props["default_generation_settings"]["n_ctx"], 1000);
  EXPECT_EQ(server.get("/metrics").status, 200);
  json answer = completion(server, {{"prompt", "a"}, {"temperature", 0}});
  EXPECT_EQ(answer["tokens_predicted"], 7);

  Environment wrong("LLAMA_ARG_N_PARALLEL", "many");
  testing::ProgramResult result =
      testing::run_program({"serve", "--model", model});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, ::testing::HasSubstr("--parallel"));
  EXPECT_THAT(result.err, ::testing::HasSubstr("LLAMA_ARG_N_PARALLEL=many"));
  // Not the one to blame when the command line is wrong.
  result = testing::run_program(
      {"serve", "--model", model, "--parallel", "several"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(
      result.err, ::testing::Not(::testing::HasSubstr("LLAMA_ARG_N_PARALLEL")));
}

TEST_F(SettingsTest, VariablesOfWhatIsNotBuiltAreRefused) {
  struct Case {
    const char* name;
    const char* value;
    const char* option;
  };
  for (const Case& c :
       {Case{"LLAMA_ARG_HF_REPO", "a/b", "--hf-repo"},
        Case{"LLAMA_ARG_N_GPU_LAYERS", "99", "--n-gpu-layers"},
        Case{"LLAMA_ARG_EMBEDDINGS", "1", "--embeddings"},
        Case{"LLAMA_ARG_CACHE_TYPE_K", "q8_0", "--cache-type-k"}}) {
    Environment variable(c.name, c.value);
    testing::ProgramResult result =
        testing::run_program({"serve", "--model", model, "--estimate-memory"});
    EXPECT_EQ(result.exit_code, 2) << c.name;
    EXPECT_THAT(result.err, ::testing::HasSubstr(c.name));
    EXPECT_THAT(result.err, ::testing::HasSubstr(c.option));
  }
  Environment none("LLAMA_ARG_N_GPU_LAYERS", "0"),
      off("LLAMA_ARG_EMBEDDINGS", "0");
  testing::ProgramResult result =
      testing::run_program({"serve", "--model", model, "--estimate-memory"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST_F(SettingsTest, ALogThatCannotBeWrittenEndsNothing) {
  {
    RunningServer server(model, {"--log-file", "/dev/full"});
    completion(server, greedy("a", 2));
    EXPECT_THAT(
        server.log(),
        ::testing::HasSubstr(
            "cannot write to the log file /dev/full: No space left on device"));
    size_t first = server.log().find("/dev/full");
    EXPECT_EQ(server.log().find("/dev/full", first + 1), std::string::npos);
  }
  struct stat info{};
  ASSERT_EQ(::stat("/dev/full", &info), 0);
  EXPECT_EQ(info.st_mode & 0666, 0666);  // a device's rights are not ours
}

TEST_F(SettingsTest, ALogWhoseReaderLeavesEndsNothing) {
  std::string socket = folder.path("socket.sock");
  std::string command = std::string(MLXCEL_TEST_PROGRAM) +
                        " serve --log-disable --model " + model + " --host " +
                        socket + " 2>&1 & echo $! >" + folder.path("pid") +
                        "; wait $!; echo $? >" + folder.path("code");
  // The reader ends before the first line is written.
  FILE* reader = ::popen(("(" + command + ") | exec true").c_str(), "r");
  ASSERT_NE(reader, nullptr);
  while ((!std::filesystem::exists(socket) ||
          text_of(folder.path("pid")).empty()) &&
         !std::filesystem::exists(folder.path("code"))) {
    std::this_thread::yield();
  }
  EXPECT_FALSE(std::filesystem::exists(folder.path("code")));
  ::kill(std::stoi(text_of(folder.path("pid"))), SIGTERM);
  ::pclose(reader);
  EXPECT_EQ(text_of(folder.path("code")), "0\n");
}

}  // namespace
}  // namespace mlxcel
