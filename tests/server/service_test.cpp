// The thread that owns the engine, over a model that is a function of its
// tokens: what fails there ends one request, never the thread.
#include "server/service.h"

#include "core/error.h"
#include "engine/fake_model.h"
#include "http/failure.h"
#include "support/log_capture.h"
#include "support/programs/run_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <future>
#include <memory>
#include <stdexcept>
#include <thread>

namespace mlxcel::server {
namespace {

using ::testing::ElementsAre;
using testing::expected_answer;
using testing::FakeBackend;
using testing::FakeModel;
using ::testing::HasSubstr;
using testing::LogCapture;

struct ServiceTest : ::testing::Test {
  testing::TemporaryFolder folder;
  FakeModel model;
  FakeBackend backend;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<Engine> engine;
  http::Registry metrics;
  LogCapture log;  // outlives the thread that writes to it
  std::unique_ptr<Service> service;

  ServiceTest() {
    testing::write_chain_model(folder.path("chain"));
    tokenizer = Tokenizer::load(folder.path("chain"));
    start();
  }
  void start(ServiceOptions options = {.max_running = 4, .context = 1000}) {
    service.reset();
    EngineOptions sizes;
    sizes.max_positions = options.context;
    sizes.context_shift = options.context_shift;
    engine = std::make_unique<Engine>(model, backend, sizes);
    service = std::make_unique<Service>(
        *engine, *tokenizer, std::vector<int32_t>{}, options, metrics);
  }
  static GenerationRequest asking(std::vector<int32_t> prompt, int tokens) {
    GenerationRequest request;
    request.prompt = std::move(prompt);
    request.max_tokens = tokens;
    request.sampling.temperature = 0;
    return request;
  }
  // All that one request is answered with.
  GenerationPart whole(GenerationRequest request) {
    std::promise<GenerationPart> done;
    std::vector<GenerationRequest> requests;
    requests.push_back(std::move(request));
    service->submit(std::move(requests), [&](GenerationPart part) {
      done.set_value(std::move(part));
    });
    return done.get_future().get();
  }
  // The end of the only answer.
  std::future<GenerationEnd> submit(GenerationRequest request) {
    auto done = std::make_shared<std::promise<GenerationEnd>>();
    std::vector<GenerationRequest> requests;
    requests.push_back(std::move(request));
    service->submit(std::move(requests), [done](GenerationPart part) {
      if (part.end) {
        done->set_value(std::move(*part.end));
      }
    });
    return done->get_future();
  }
  // A later request is answered, so the thread goes on.
  void expect_an_answer() {
    std::vector<int32_t> prompt = {1, 2, 3};
    GenerationEnd end = submit(asking(prompt, 4)).get();
    EXPECT_EQ(end.failure, nullptr);
    EXPECT_EQ(end.tokens, expected_answer(prompt, 4, {.temperature = 0}));
  }
};

TEST_F(ServiceTest, WorkThatFailsEndsNothingElse) {
  service->on_engine(
      [](Engine&) { throw std::runtime_error("work that fails"); });
  expect_an_answer();
  EXPECT_THAT(log.warnings, ElementsAre(HasSubstr("work that fails")));
}

TEST_F(ServiceTest, WhoeverWaitsGetsWhatFailed) {
  int64_t vocab =
      service->ask([](Engine& asked) { return asked.vocab_size(); });
  EXPECT_EQ(vocab, testing::kFakeVocab);
  auto fails = [](Engine&) -> int { throw ConfigError("no answer"); };
  EXPECT_THROW(service->ask(fails), ConfigError);
  expect_an_answer();
}

TEST_F(ServiceTest, ARequestThatCannotBeginFailsAlone) {
  // Whole words without a token for unknown ones: the mark has no tokens.
  std::ofstream(folder.path("chain/tokenizer.json"))
      << R"({"version": "1.0", "added_tokens": [], "model": {"type": "WordLevel",
             "vocab": {"a": 0, "b": 1, "c": 2}, "unk_token": "[UNK]"}})";
  service.reset();  // it uses the tokenizer
  tokenizer = Tokenizer::load(folder.path("chain"));
  start();
  GenerationRequest request = asking({1, 2, 3}, 4);
  request.thoughts = {.tokens = 2, .marks = {"<t>", "</t>"}, .begun = true};
  GenerationEnd end = submit(std::move(request)).get();
  ASSERT_NE(end.failure, nullptr);
  EXPECT_THROW(std::rethrow_exception(end.failure), TextError);
  expect_an_answer();
}

TEST_F(ServiceTest, ASinkThatFailsEndsNothingElse) {
  // A sink that fails is the fault of whoever gave it.
  std::vector<GenerationRequest> requests = {asking({5, 6}, 2)};
  service->submit(std::move(requests), [](GenerationPart) {
    throw std::runtime_error("a sink that fails");
  });
  expect_an_answer();
  EXPECT_THAT(
      log.warnings, ::testing::Contains(HasSubstr("a sink that fails")));
}

TEST_F(ServiceTest, LogProbabilitiesBehindAShiftAreOfTheirOwnTokens) {
  start({.max_running = 1, .context = 48, .context_shift = true});
  for (bool of_prompt : {false, true}) {
    GenerationRequest request = asking(testing::some_tokens(44), 60);
    request.logprobs = 1;
    request.prompt_logprobs = of_prompt;
    GenerationPart part = whole(std::move(request));
    ASSERT_EQ(part.end->failure, nullptr);
    ASSERT_EQ(part.end->tokens.size(), 60u);
    EXPECT_GT(part.end->shifted_tokens, 0);
    EXPECT_EQ(part.prompt_logprobs.size(), of_prompt ? 43u : 0u);
    // The best token is drawn, so that it is its own first alternative.
    ASSERT_EQ(part.logprobs.size(), 60u);
    for (const TokenLogprob& entry : part.logprobs) {
      ASSERT_EQ(entry.top.size(), 1u);
      EXPECT_EQ(entry.top[0].first, entry.token);
    }
  }
}

TEST_F(ServiceTest, TheContextBoundsWhatAnAnswerMayHold) {
  auto submit_with = [&](int64_t tokens) {
    GenerationRequest request = asking({1, 2, 3}, 1);
    request.max_tokens = tokens;
    request.logprobs = 1;
    request.stops = {"x"};
    return whole(std::move(request));
  };
  // Two entries for each of at most 997 tokens.
  EXPECT_EQ(submit_with(1'000'000).end->failure, nullptr);
  start({.max_running = 1, .context = 1000, .context_shift = true});
  EXPECT_THROW(submit_with(1'000'000), http::Failure);
}

TEST_F(ServiceTest, FaultsOfTheModelAreNoFaultsOfTheRequest) {
  struct Damaged : FakeModel {
    Tensor forward(const Step& step, KvCache& cache) override {
      Tensor logits = FakeModel::forward(step, cache);
      auto& values =
          static_cast<testing::FakeStorage*>(logits.storage())->values;
      std::fill(values.begin(), values.end(), NAN);
      return logits;
    }
  };
  Damaged damaged;
  service->ask([&](Engine& asked) { asked.set_model(damaged, backend); });
  GenerationEnd end = submit(asking({1, 2, 3}, 4)).get();
  ASSERT_NE(end.failure, nullptr);
  http::Failure failure = http::to_failure(end.failure);
  EXPECT_EQ(failure.status, 500);
  EXPECT_EQ(failure.type, "server_error");
  // The same word for a request that rules out all tokens is its own fault.
  service->ask([&](Engine& asked) { asked.set_model(model, backend); });
  GenerationRequest request = asking({1, 2, 3}, 4);
  for (int32_t token = 0; token < testing::kFakeVocab; ++token) {
    request.sampling.logit_bias.emplace_back(token, -INFINITY);
  }
  end = submit(std::move(request)).get();
  ASSERT_NE(end.failure, nullptr);
  failure = http::to_failure(end.failure);
  EXPECT_EQ(failure.status, 400);
  EXPECT_THAT(failure.what(), HasSubstr("exclude every token"));
}

// Each step takes this long at least, so that times have bounds on any machine.
struct SlowModel : FakeModel {
  explicit SlowModel(int milliseconds) : pause(milliseconds) {}
  Tensor forward(const Step& step, KvCache& cache) override {
    std::this_thread::sleep_for(pause);
    return FakeModel::forward(step, cache);
  }
  std::chrono::milliseconds pause;
};

TEST_F(ServiceTest, APromptOfOneStepTakesThatStepsTime) {
  SlowModel slow(20);
  service->ask([&](Engine& asked) { asked.set_model(slow, backend); });
  GenerationEnd end = submit(asking({1, 2, 3}, 3)).get();
  service.reset();
  EXPECT_GE(end.prompt_seconds, 0.02);
  EXPECT_GE(end.decode_seconds, 0.04);
}

TEST_F(ServiceTest, ALongAnswerEndsAtItsTime) {
  SlowModel slow(50);
  start(
      {.max_running = 1,
       .context = 64,
       .context_shift = true,
       .decode_timeout = std::chrono::seconds(1)});
  service->ask([&](Engine& asked) { asked.set_model(slow, backend); });
  GenerationEnd end = submit(asking({1, 2, 3}, -1)).get();
  service.reset();
  EXPECT_EQ(end.stop, StopKind::length);
  EXPECT_GE(end.tokens.size(), 1u);
  EXPECT_LE(
      end.tokens.size(), 21u);  // the first step past a second is the last
}

}  // namespace
}  // namespace mlxcel::server
