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

#include <fstream>
#include <future>
#include <memory>
#include <stdexcept>

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
  void start() {
    ServiceOptions options{.max_running = 4, .context = 1000};
    EngineOptions sizes;
    sizes.max_positions = options.context;
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
  service.reset();
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

}  // namespace
}  // namespace mlxcel::server
