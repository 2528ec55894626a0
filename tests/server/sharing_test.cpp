// Many requests on one server: adapters, caches, memory and batches never
// change an answer.
#include "server/running_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <thread>

namespace mlxcel {
namespace {

using nlohmann::json;
using testing::Answer;
using testing::RunningServer;
using testing::TemporaryFolder;

const std::string kPrompt =
    "The quick brown fox jumps over the lazy dog. The quick brown fox jumps "
    "over the lazy dog. Once more.";

struct SharingTest : ::testing::Test {
  TemporaryFolder folder;
  std::string model = folder.path("model"), a = folder.path("a"),
              b = folder.path("b");

  SharingTest() {
    testing::write_random_model(model);
    testing::write_random_adapter(a, 1);
    testing::write_random_adapter(b, 2);
  }
  // By a process of its own, which shares nothing.
  std::string alone(const std::vector<std::string>& flags = {}) const {
    std::vector<std::string> words = {
        "generate",
        "--model",
        model,
        "--prompt",
        kPrompt,
        "--max-tokens",
        "12",
        "--temp",
        "0",
        "--no-chat-template"};
    words.insert(words.end(), flags.begin(), flags.end());
    testing::ProgramResult result = testing::run_program(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out.substr(0, result.out.size() - 1);
  }
  static json greedy(int n = 12) {
    return {{"prompt", kPrompt}, {"n_predict", n}, {"temperature", 0}};
  }
  static json scales(double first, double second) {
    return json::array(
        {{{"id", 0}, {"scale", first}}, {{"id", 1}, {"scale", second}}});
  }
};

TEST_F(SharingTest, ACachedPrefixDoesNotCrossAdapters) {
  std::string base = alone(), with_a = alone({"--lora", a}),
              with_b = alone({"--lora", b}),
              both = alone({"--lora-scaled", a + ":0.5," + b + ":0.25"});
  EXPECT_NE(base, with_a);
  EXPECT_NE(with_a, with_b);
  RunningServer server(model, {"--lora", a + "," + b, "--parallel", "1"});
  struct Case {
    json scales;
    std::string expected;
    bool cached;
  };
  const Case cases[] = {
      {scales(1, 0), with_a, false},
      {scales(0, 1), with_b, false},
      {scales(0, 0), base, false},
      {scales(.5, .25), both, false},
      {scales(1, 0), with_a, true},
      {scales(0, 1), with_b, true}};
  for (bool by_post : {false, true}) {
    server.send("POST", "/v1/cache/reset", "");
    for (const Case& c : cases) {
      json body = greedy();
      if (by_post) {
        EXPECT_EQ(server.post("/lora-adapters", c.scales).status, 200);
      } else {
        body["lora"] = c.scales;
      }
      json answer = server.post("/completion", body).json();
      EXPECT_EQ(answer["content"], c.expected) << c.scales;
      EXPECT_EQ(answer["timings"]["cache_n"] > 0, c.cached) << c.scales;
    }
  }
}

TEST_F(SharingTest, ZeroMeansZeroFromTheStartOn) {
  std::string base = alone(), with_a = alone({"--lora", a});
  RunningServer server(model, {"--lora", a, "--lora-init-without-apply"});
  auto listed = [&] {
    return server.get("/lora-adapters").json()[0]["scale"].get<double>();
  };
  auto content = [&](const json& body) {
    return server.post("/completion", body).json()["content"];
  };
  EXPECT_EQ(listed(), 0);
  EXPECT_EQ(content(greedy()), base);
  server.send("POST", "/lora-adapters", R"([{"id":0,"scale":1}])");
  EXPECT_EQ(content(greedy()), with_a);
  json off = greedy();
  off["lora"] = json::array();
  EXPECT_EQ(content(off), base);
  EXPECT_EQ(content(greedy()), with_a);
  for (const char* bad :
       {R"([{"id":1,"scale":1}])",
        R"([{"id":0,"scale":1},{"id":0,"scale":0}])",
        R"([{"id":0,"scale":"1"}])"}) {
    EXPECT_EQ(server.send("POST", "/lora-adapters", bad).status, 400);
    EXPECT_EQ(listed(), 1);
  }
  server.send("POST", "/lora-adapters", "[]");
  EXPECT_EQ(listed(), 0);
  EXPECT_EQ(content(greedy()), base);
}

TEST_F(SharingTest, AnAdapterIsAModelToo) {
  RunningServer server(model, {"--lora", a + "," + b, "--alias", "m"});
  json models = server.get("/v1/models").json()["data"];
  EXPECT_EQ(models[1]["id"], "m:a");
  json body = {
      {"model", "m:b"},
      {"prompt", kPrompt},
      {"max_tokens", 12},
      {"temperature", 0}};
  EXPECT_EQ(
      server.post("/v1/completions", body).json()["choices"][0]["text"],
      alone({"--lora", b}));
  body["lora"] = scales(1, 0);
  EXPECT_EQ(server.post("/v1/completions", body).status, 400);
}

TEST_F(SharingTest, EveryFlagOfAdaptersGivesLiveOnesInOrder) {
  RunningServer server(model, {"--lora-scaled", a + ":0.5", "--adapter", b});
  json listed = server.get("/lora-adapters").json();
  ASSERT_EQ(listed.size(), 2u);
  EXPECT_EQ(listed[0]["task_name"], "a");
  EXPECT_EQ(listed[0]["scale"], 0.5);
  EXPECT_EQ(listed[1]["task_name"], "b");
  EXPECT_EQ(listed[1]["scale"], 1);
  EXPECT_EQ(server.post("/lora-adapters", scales(0, 1)).status, 200);
  EXPECT_EQ(
      server.post("/completion", greedy()).json()["content"],
      alone({"--lora", b}));
}

TEST_F(SharingTest, OneAdapterMayStandInAStackTwice) {
  RunningServer server(
      model, {"--lora", a + "," + a + "," + a, "--alias", "m"});
  json listed = server.get("/lora-adapters").json();
  ASSERT_EQ(listed.size(), 3u);
  EXPECT_EQ(listed[0]["task_name"], "a");
  EXPECT_EQ(listed[1]["task_name"], "a-2");
  EXPECT_EQ(listed[2]["task_name"], "a-3");
  EXPECT_EQ(
      server.post("/completion", greedy()).json()["content"],
      alone({"--lora", a + "," + a + "," + a}));
  json body = greedy();
  body["model"] = "m:a-2";
  EXPECT_EQ(
      server.post("/completion", body).json()["content"], alone({"--lora", a}));
}

TEST_F(SharingTest, FusedScalesAreFixed) {
  RunningServer server(model, {"--lora-scaled", a + ":0.5", "--lora-fuse"});
  EXPECT_EQ(
      server.post("/completion", greedy()).json()["content"],
      alone({"--lora-scaled", a + ":0.5", "--lora-fuse"}));
  auto post = [&](const char* body) {
    return server.send("POST", "/lora-adapters", body).status;
  };
  EXPECT_EQ(post(R"([{"id":0,"scale":0.5}])"), 200);
  EXPECT_EQ(post(R"([{"id":0,"scale":1}])"), 400);
  EXPECT_EQ(post("[]"), 400);
  EXPECT_EQ(server.get("/lora-adapters").json()[0]["scale"], 0.5);
  json named = greedy();
  named["model"] = "a";
  EXPECT_EQ(server.post("/completion", named).status, 200);
}

TEST_F(SharingTest, OneOfSeveralFusedAdaptersIsNoModel) {
  RunningServer server(
      model, {"--lora", a + "," + b, "--lora-fuse", "--alias", "m"});
  json body = greedy();
  body["model"] = "m:a";
  Answer answer = server.post("/completion", body);
  EXPECT_EQ(answer.status, 400) << answer.body;
  EXPECT_THAT(
      answer.json()["error"]["message"],
      ::testing::HasSubstr("adapter 1 (b) is fused into the weights"));
  // What is not served alone is not listed either.
  EXPECT_EQ(server.get("/v1/models").json()["data"].size(), 1u);
  EXPECT_EQ(server.get("/v1/models/m:a").status, 404);
}

TEST_F(SharingTest, AdaptersComeAndGoAtRunTime) {
  RunningServer server(model, {"--lora-dir", folder.path(), "--alias", "m"});
  std::string base = alone(), with_a = alone({"--lora", a}),
              with_b = alone({"--lora", b});
  auto load = [&](const char* name, const std::string& path) {
    return server
        .post(
            "/v1/load_lora_adapter", {{"lora_name", name}, {"lora_path", path}})
        .status;
  };
  auto content = [&](const std::string& name) {
    json body = greedy();
    body["model"] = name;
    return server.post("/completion", body).json().value("content", "none");
  };
  EXPECT_EQ(content("m"), base);
  EXPECT_EQ(load("x", "a"), 200);
  EXPECT_EQ(load("x", "b"), 400);     // the name is taken
  EXPECT_EQ(load("y", "/tmp"), 400);  // outside
  EXPECT_EQ(load("y", "missing"), 400);
  for (const std::string& name :
       {std::string("y\nServing"),
        std::string("\x7f"),
        std::string(257, 'y')}) {
    EXPECT_EQ(load(name.c_str(), "a"), 400) << name;
  }
  EXPECT_EQ(content("m:x"), with_a);
  EXPECT_EQ(content("m"), base);
  json name = {{"lora_name", "x"}};
  EXPECT_EQ(server.post("/v1/unload_lora_adapter", name).status, 200);
  EXPECT_EQ(server.post("/v1/unload_lora_adapter", name).status, 404);
  EXPECT_EQ(content("m:x"), "none");
  // The same name again, with other content: nothing of the first is reused.
  EXPECT_EQ(load("x", "b"), 200);
  EXPECT_EQ(content("m:x"), with_b);
  EXPECT_EQ(content("x"), with_b);
}

TEST_F(SharingTest, WhatRunsKeepsAnAdapterThatIsUnloaded) {
  json body = greedy(900);
  body["lora"] = json::array({{{"id", 0}, {"scale", 1}}});
  std::string expected;
  {
    RunningServer server(model, {"--lora", a});
    expected = server.post("/completion", body).json()["content"];
  }
  RunningServer server(model, {"--lora", a, "--lora-dir", folder.path()});
  std::string answer;
  std::thread running(
      [&] { answer = server.post("/completion", body).json()["content"]; });
  while (!server.get("/slots").json()[0]["is_processing"]) {
    std::this_thread::yield();
  }
  EXPECT_EQ(
      server.post("/v1/unload_lora_adapter", {{"lora_name", "a"}}).status, 200);
  auto load = [&](const char* name) {
    return server
        .post(
            "/v1/load_lora_adapter", {{"lora_name", name}, {"lora_path", "b"}})
        .status;
  };
  EXPECT_EQ(load("first"), 200);  // the model is built anew, still with a
  EXPECT_EQ(server.post("/completion", body).status, 400);
  running.join();
  EXPECT_EQ(answer, expected);
  EXPECT_EQ(load("second"), 200);  // without a
  json named = greedy();
  named["model"] = "second";
  EXPECT_EQ(
      server.post("/completion", named).json()["content"],
      alone({"--lora", b}));
  EXPECT_EQ(server.post("/completion", greedy()).json()["content"], alone());
}

std::vector<std::string> together(
    const RunningServer& server, const std::vector<json>& bodies) {
  std::vector<std::string> answers(bodies.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < bodies.size(); ++i) {
    threads.emplace_back([&, i] {
      Answer answer = server.post("/completion", bodies[i]);
      answers[i] =
          answer.status == 200 ? answer.json()["content"] : json(answer.body);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return answers;
}

TEST_F(SharingTest, TheSameAloneInABatchAndUnderPressure) {
  std::vector<json> bodies;
  for (int i = 0; i < 12; ++i) {
    json body = {
        {"prompt", std::string(size_t(20 + 25 * i), char('a' + i)) + kPrompt},
        {"n_predict", 90},
        {"seed", i},
        {"temperature", 1.0},
        {"lora", scales(i % 2, i % 3 == 0 ? 0.5 : 0)}};
    bodies.push_back(body);
  }
  std::vector<std::string> alone;
  {
    RunningServer server(
        model, {"--lora", a + "," + b, "--no-prompt-cache", "--parallel", "1"});
    for (const json& body : bodies) {
      alone.push_back(server.post("/completion", body).json()["content"]);
    }
  }
  // A block of 64 positions takes 64 * 2 layers * 2 * 32 values of 4 bytes:
  // 16 blocks are 1024 positions for twelve answers of up to 550.
  for (const char* budget : {"auto", "512KiB"}) {
    RunningServer server(
        model,
        {"--lora",
         a + "," + b,
         "--parallel",
         "12",
         "--kv-cache-budget",
         budget,
         "--prefill-chunk-size",
         "100",
         "--deterministic",
         "--metrics"});
    for (int round = 0; round < 2; ++round) {  // the second from the cache
      EXPECT_EQ(together(server, bodies), alone) << budget << round;
    }
    json stats = server.get("/v1/cache/stats").json();
    if (budget != std::string("auto")) {
      EXPECT_GT(stats["preemptions"], 0);
      EXPECT_LE(stats["kv_blocks_used"], stats["kv_blocks_limit"]);
    } else {
      EXPECT_GT(stats["hits"], 0);
    }
    EXPECT_THAT(
        server.get("/metrics").body,
        ::testing::HasSubstr("mlxcel_generated_tokens_total 2160"));
  }
}

TEST_F(SharingTest, AFullQueueAnswersAtOnce) {
  RunningServer server(model, {"--parallel", "1", "--max-queue-depth", "1"});
  json body = {{"prompt", "a"}, {"n_predict", 3}, {"n", 3}};
  json three = {{"prompt", {"a", "b", "c"}}, {"n_predict", 2}};
  // What can never run is no matter of waiting.
  Answer answer = server.post("/completion", three);
  EXPECT_EQ(answer.status, 400);
  EXPECT_THAT(
      answer.json()["error"]["message"], ::testing::HasSubstr("at most 2"));
  json two = three;
  two["prompt"] = {"a", "b"};
  EXPECT_EQ(server.post("/completion", two).status, 200);
  std::thread other([&] {
    json both = {{"prompt", {"a", "b"}}, {"n_predict", 1500}};
    EXPECT_EQ(server.post("/completion", both).status, 200);
  });
  while (!server.get("/slots").json()[0]["is_processing"]) {
    std::this_thread::yield();
  }
  answer = server.post("/completion", two);
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.headers["retry-after"], "1");
  EXPECT_EQ(answer.json()["error"]["type"], "unavailable_error");
  other.join();
}

TEST_F(SharingTest, AClientThatLeavesCostsNothingMore) {
  RunningServer server(model, {"--parallel", "2"});
  json body = {{"prompt", kPrompt}, {"stream", true}, {"n_predict", -1}};
  for (int i = 0; i < 8; ++i) {
    server.abandon("/completion", body, 400);
  }
  // All slots come free without 2000 tokens being drawn in each.
  for (;;) {
    json slots = server.get("/slots").json();
    if (!slots[0]["is_processing"] && !slots[1]["is_processing"]) {
      break;
    }
    std::this_thread::yield();
  }
  server.send("POST", "/v1/cache/reset", "");
  json stats = server.get("/v1/cache/stats").json();
  EXPECT_EQ(stats["kv_blocks_used"], 0);
}

TEST_F(SharingTest, ADrainLosesNoAnswer) {
  constexpr int kStreams = 64;
  RunningServer server(model, {"--max-queue-depth", "64"});
  json body = greedy(400);
  std::string expected = server.post("/completion", body).json()["content"];
  body["stream"] = true;
  std::vector<std::string> texts(kStreams);
  std::atomic<int> ended{0};
  std::vector<std::thread> threads;
  for (std::string& text : texts) {
    threads.emplace_back([&] {
      for (const std::string& event :
           server.post("/completion", body).events()) {
        text += json::parse(event)["content"];
      }
      ++ended;
    });
  }
  auto busy = [&] {
    int count = 0;
    for (const json& slot : server.get("/slots").json()) {
      count += slot["is_processing"] ? 1 : 0;
    }
    return count;
  };
  while (busy() < kStreams) {
    if (ended > 0) {
      break;  // too fast to be caught together
    }
  }
  EXPECT_EQ(server.end(SIGTERM), 0);
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const std::string& text : texts) {
    EXPECT_EQ(text, expected);
  }
}

TEST_F(SharingTest, WrongStartsEndBeforeThePortOpens) {
  struct Case {
    std::vector<std::string> flags;
    const char* says;
  };
  const Case cases[] = {
      {{"--lora", folder.path("missing")}, "there is no such folder"},
      {{"--lora-scaled", a + ":nan"}, "not a finite number"},
      {{"--lora-scaled", a}, "no number after a last colon"},
      {{"--draft-model", model}, "--draft-model is not built yet"},
      {{"--reranker-model", model}, "--reranker-model is not built yet"},
      {{"--tp-size", "2"}, "--tp-size is not built yet"},
      {{"--hf-repo", "a/b"}, "--hf-repo is not built yet"},
      {{"--parallel", "0"}, "wrong --parallel 0"},
      {{"--kv-cache-budget", "lots"}, "wrong --kv-cache-budget"},
      {{"--ssl-cert-file", "x.pem"}, "belong together"},
      {{"--n-gpu-layers", "33"}, "--n-gpu-layers is not built yet"}};
  for (const Case& c : cases) {
    std::vector<std::string> words = {"serve", "--model", model, "--port", "0"};
    words.insert(words.end(), c.flags.begin(), c.flags.end());
    testing::ProgramResult result = testing::run_program(words);
    EXPECT_NE(result.exit_code, 0) << c.says;
    EXPECT_LT(result.exit_code, 128) << c.says;
    EXPECT_THAT(result.err, ::testing::HasSubstr(c.says));
  }
}

}  // namespace
}  // namespace mlxcel
