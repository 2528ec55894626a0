// Sequences with a recurrent state, which cannot be wound back.
#include "core/error.h"
#include "engine/engine_support.h"

namespace mlxcel {
namespace {

using testing::caching;
using testing::EngineTest;
using testing::expected_answer;
using testing::some_tokens;

TEST_F(EngineTest, RecurrentStateFollowsItsSequence) {
  model.recurrent = true;
  Engine engine(
      model,
      backend,
      {.prefill_chunk = 7,
       .max_sequences = 3,
       .max_blocks = 5,
       .prefix_cache = {.bytes = 1 << 20}});
  // More than fits at a time: some wait, some give way.
  std::map<int64_t, std::vector<int32_t>> expected;
  for (int length : {60, 70, 50, 20, 60}) {
    std::vector<int32_t> prompt = some_tokens(length);
    expected[engine.add({.prompt = prompt, .max_tokens = 90})] =
        expected_answer(prompt, 90);
  }
  while (!engine.idle()) {
    for (const Event& event : std::vector<Event>(engine.step())) {
      int64_t id = event.sequence;
      if (event.finish != FinishReason::none) {
        EXPECT_EQ(answer(engine, id), expected[id]) << id;
        engine.release(id);
      }
    }
  }
  EXPECT_GT(engine.stats().preemptions, 0);
  engine.prefix_cache().clear();
  EXPECT_EQ(engine.states().used(), 0);
  EXPECT_EQ(engine.blocks().used(), 0);
}

TEST_F(EngineTest, RecurrentPromptsGoOnFromMessageBorders) {
  model.recurrent = true;
  EngineOptions options = caching();
  options.prefill_chunk = 50;
  Engine engine(model, backend, options);
  constexpr int32_t kEnd = 96;
  // A system message of 100 tokens, then different questions.
  auto ask = [&](int question) {
    std::vector<int32_t> prompt = some_tokens(99);
    std::replace(prompt.begin(), prompt.end(), kEnd, 0);
    prompt.push_back(kEnd);
    for (int i = 0; i < 30; ++i) {
      prompt.push_back((question + i) % 90);
    }
    return prompt;
  };
  auto answered = [&](const std::vector<int32_t>& prompt, int64_t cached) {
    int64_t id = engine.add({.prompt = prompt, .max_tokens = 9, .eos = {kEnd}});
    run(engine);
    std::vector<int32_t> got = answer(engine, id);
    std::vector<int32_t> expected = expected_answer(prompt, 9);
    auto end = std::find(expected.begin(), expected.end(), kEnd);
    expected.erase(end == expected.end() ? end : end + 1, expected.end());
    EXPECT_EQ(got, expected);
    EXPECT_EQ(engine.num_cached(id), cached);
    engine.release(id);
    return got;
  };
  std::vector<int32_t> first = ask(1);
  std::vector<int32_t> got = answered(first, 0);
  answered(ask(2), 100);  // from the system message's end
  answered(ask(1), 129);  // the same question: all but its last token
  first.insert(first.end(), got.begin(), got.end());
  first.push_back(5);
  // The next turn: from the end of the answer, whose last token was not fed.
  answered(first, 129 + int64_t(got.size()));
  engine.prefix_cache().clear();
  EXPECT_EQ(engine.states().used(), 0);
}

TEST_F(EngineTest, NothingGoesOnFromTheStatesOfAFailedStep) {
  model.recurrent = true;
  EngineOptions options = caching();
  options.prefill_chunk = 32;
  Engine engine(model, backend, options);
  std::vector<int32_t> prompt = some_tokens(100);
  auto answered = [&](const std::vector<int32_t>& tokens) {
    int64_t id = engine.add({.prompt = tokens, .max_tokens = 9});
    run(engine);  // the model throws where a state is not at its position
    EXPECT_EQ(answer(engine, id), expected_answer(tokens, 9));
    engine.release(id);
  };
  // While the prompt is read, between two places where a state is kept.
  int64_t id = engine.add({.prompt = prompt, .max_tokens = 9});
  engine.step();
  engine.step();
  model.fails = true;
  EXPECT_THROW(engine.step(), std::runtime_error);
  EXPECT_TRUE(engine.idle());
  EXPECT_THROW(std::rethrow_exception(engine.failure(id)), std::runtime_error);
  engine.release(id);
  answered(prompt);

  // While the answer is written: the failed sequence's next turn.
  prompt = some_tokens(70, 3);
  id = engine.add({.prompt = prompt, .max_tokens = 9});
  while (engine.generated(id).size() < 4) {
    engine.step();
  }
  model.fails = true;
  EXPECT_THROW(engine.step(), std::runtime_error);
  for (int32_t token : answer(engine, id)) {
    prompt.push_back(token);
  }
  engine.release(id);
  prompt.push_back(5);
  answered(prompt);

  // By what the caller does with the logits.
  prompt = some_tokens(80, 9);
  id = engine.add(
      {.prompt = prompt,
       .max_tokens = 9,
       .on_logits = [](int64_t, std::span<const float>) {
         throw std::runtime_error("no");
       }});
  EXPECT_THROW(run(engine), std::runtime_error);
  engine.release(id);
  answered(prompt);
  engine.prefix_cache().clear();
  EXPECT_EQ(engine.states().used(), 0);
  EXPECT_EQ(engine.blocks().used(), 0);
}

}  // namespace
}  // namespace mlxcel
