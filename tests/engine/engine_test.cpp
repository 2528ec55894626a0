#include "engine/engine.h"

#include "core/error.h"
#include "engine/engine_support.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>

namespace mlxcel {
namespace {

using testing::caching;
using testing::EngineTest;
using testing::expected_answer;
using testing::fake_logits;
using testing::FakeBackend;
using testing::FakeModel;
using testing::kFakeVocab;
using testing::some_tokens;

TEST_F(EngineTest, AnswersAsAPlainLoopDoesForEveryChunkSize) {
  std::vector<int32_t> prompt = some_tokens(150);
  std::vector<int32_t> expected = expected_answer(prompt, 40);
  for (int chunk : {1, 7, 64, 100, 512}) {
    Engine engine(model, backend, {.prefill_chunk = chunk});
    int64_t id = engine.add({.prompt = prompt, .max_tokens = 40});
    EXPECT_EQ(run(engine)[id], FinishReason::length);
    EXPECT_EQ(answer(engine, id), expected) << chunk;
    engine.release(id);
    EXPECT_EQ(engine.blocks().used(), 0);
  }
}

TEST_F(EngineTest, ASequenceIsTheSameAloneAndInABatch) {
  Engine engine(model, backend, {.prefill_chunk = 33, .max_sequences = 5});
  SamplingParams sampling{.temperature = 0.9f, .top_p = 0.9f};
  std::map<int64_t, std::vector<int32_t>> expected;
  auto add = [&](int length, int max_tokens) {
    std::vector<int32_t> prompt = some_tokens(length, length);
    sampling.seed = uint64_t(length);
    int64_t id = engine.add(
        {.prompt = prompt, .max_tokens = max_tokens, .sampling = sampling});
    expected[id] = expected_answer(prompt, max_tokens, sampling);
  };
  for (int i = 0; i < 9; ++i) {
    add(5 + 31 * i, 20 + i);
  }
  for (int i = 0; i < 12; ++i) {
    engine.step();
  }
  add(64, 70);  // joins while the others run
  run(engine);
  for (const auto& [id, tokens] : expected) {
    EXPECT_EQ(answer(engine, id), tokens) << id;
    engine.release(id);
  }
  EXPECT_EQ(engine.blocks().used(), 0);
}

TEST_F(EngineTest, MarksPromptAndGeneratedRows) {
  Engine engine(model, backend);
  engine.add({.prompt = some_tokens(3), .max_tokens = 2});
  engine.step();
  ASSERT_EQ(model.last_step.segments.size(), 1u);
  EXPECT_TRUE(model.last_step.segments[0].prompt);
  EXPECT_EQ(model.last_step.segments[0].rope_length, 3);
  EXPECT_EQ(model.last_step.num_prompt_rows, 3);
  EXPECT_THAT(model.last_step.output_rows, ::testing::ElementsAre(2));
  engine.add({.prompt = some_tokens(4), .max_tokens = 1});
  engine.step();
  ASSERT_EQ(model.last_step.segments.size(), 2u);
  EXPECT_TRUE(model.last_step.segments[0].prompt);  // the newcomer
  EXPECT_FALSE(model.last_step.segments[1].prompt);
  EXPECT_EQ(model.last_step.segments[1].position, 3);
  EXPECT_EQ(model.last_step.segments[1].rope_length, 4);
  EXPECT_EQ(model.last_step.num_prompt_rows, 4);
  EXPECT_TRUE(engine.idle());
}

TEST_F(EngineTest, EndsAtEosLengthAndContext) {
  std::vector<int32_t> prompt = some_tokens(10);
  std::vector<int32_t> expected = expected_answer(prompt, 30);
  Engine engine(model, backend, {.max_positions = 25});
  int64_t eos =
      engine.add({.prompt = prompt, .max_tokens = 30, .eos = {expected[4]}});
  int64_t full = engine.add({.prompt = prompt});
  int64_t none = engine.add({.prompt = prompt, .max_tokens = 0});
  auto ends = run(engine);
  EXPECT_EQ(ends[eos], FinishReason::eos);
  EXPECT_EQ(answer(engine, eos).back(), expected[4]);
  EXPECT_EQ(ends[full], FinishReason::length);
  EXPECT_EQ(answer(engine, full).size(), 15u);
  EXPECT_EQ(ends[none], FinishReason::length);
  EXPECT_TRUE(answer(engine, none).empty());
}

TEST_F(EngineTest, ReportsLogitsAtEveryAskedPosition) {
  std::vector<int32_t> prompt = some_tokens(70);
  Engine engine(model, backend, {.prefill_chunk = 32});
  int64_t next = 0;
  SequenceOptions options{.prompt = prompt, .max_tokens = 3};
  options.all_prompt_logits = true;
  std::vector<int32_t> tokens = prompt;
  for (int32_t token : expected_answer(prompt, 3)) {
    tokens.push_back(token);
  }
  options.on_logits = [&](int64_t position, std::span<const float> logits) {
    EXPECT_EQ(position, next++);
    std::vector<int32_t> seen(
        tokens.begin(), tokens.begin() + ptrdiff_t(position) + 1);
    EXPECT_THAT(logits, ::testing::ElementsAreArray(fake_logits(seen)));
  };
  engine.add(std::move(options));
  run(engine);
  EXPECT_EQ(next, 72);
}

TEST_F(EngineTest, SharesAPrefixAndCopiesOnWrite) {
  Engine engine(model, backend, caching());
  std::vector<int32_t> prompt = some_tokens(100);
  int64_t first = engine.add({.prompt = prompt, .max_tokens = 10});
  run(engine);
  std::vector<int32_t> first_answer = answer(engine, first);
  engine.release(first);
  EXPECT_EQ(engine.blocks().used(), 2);

  // Three continuations that part inside the shared second block.
  std::vector<int64_t> ids;
  std::vector<std::vector<int32_t>> prompts;
  for (int i = 0; i < 3; ++i) {
    std::vector<int32_t> longer = prompt;
    longer.insert(
        longer.end(), first_answer.begin(), first_answer.begin() + 3 * i);
    longer.push_back(50 + i);
    longer.push_back(60);
    prompts.push_back(longer);
    ids.push_back(engine.add({.prompt = longer, .max_tokens = 30}));
  }
  model.prompt_rows = 0;
  run(engine);
  EXPECT_EQ(model.prompt_rows, 6);  // the two new tokens of each
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(engine.num_cached(ids[size_t(i)]), 100 + 3 * i);
    EXPECT_EQ(
        answer(engine, ids[size_t(i)]),
        expected_answer(prompts[size_t(i)], 30));
    engine.release(ids[size_t(i)]);
  }
  engine.prefix_cache().clear();
  EXPECT_EQ(engine.blocks().used(), 0);
}

TEST_F(EngineTest, ComputesTheLastPromptTokenEvenWhenAllIsCached) {
  Engine engine(model, backend, caching());
  std::vector<int32_t> prompt = some_tokens(64);
  int64_t first = engine.add({.prompt = prompt, .max_tokens = 1});
  run(engine);
  engine.release(first);
  int64_t second = engine.add({.prompt = prompt, .max_tokens = 5});
  run(engine);
  EXPECT_EQ(engine.num_cached(second), 63);
  EXPECT_EQ(answer(engine, second), expected_answer(prompt, 5));
}

TEST_F(EngineTest, LeavesGeneratedPositionsOutWhenToldSo) {
  EngineOptions options = caching();
  options.reuse_generated = false;
  Engine engine(model, backend, options);
  std::vector<int32_t> prompt = some_tokens(20);
  int64_t first = engine.add({.prompt = prompt, .max_tokens = 80});
  run(engine);
  std::vector<int32_t> longer = prompt;
  for (int32_t token : answer(engine, first)) {
    longer.push_back(token);
  }
  engine.release(first);
  longer.push_back(1);
  int64_t second = engine.add({.prompt = longer, .max_tokens = 5});
  run(engine);
  EXPECT_EQ(engine.num_cached(second), 20);
  EXPECT_EQ(answer(engine, second), expected_answer(longer, 5));
}

TEST_F(EngineTest, KeepsWhatOtherAdaptersComputedApart) {
  Engine engine(model, backend, caching());
  std::vector<int32_t> prompt = some_tokens(100);
  for (const char* key : {"", "a", "", "a", "b"}) {
    int64_t id =
        engine.add({.prompt = prompt, .max_tokens = 2, .cache_key = key});
    run(engine);
    static std::map<std::string, int> seen;
    EXPECT_EQ(engine.num_cached(id), seen[key]++ > 0 ? 99 : 0) << key;
    engine.release(id);
  }
  int64_t fresh =
      engine.add({.prompt = prompt, .max_tokens = 2, .use_cache = false});
  run(engine);
  EXPECT_EQ(engine.num_cached(fresh), 0);
}

TEST_F(EngineTest, ComputesACommonBeginningOfWaitingPromptsOnce) {
  EngineOptions options = caching();
  options.prefill_chunk = 100;
  Engine engine(model, backend, options);
  std::vector<int64_t> ids;
  std::vector<std::vector<int32_t>> prompts;
  for (int i = 0; i < 5; ++i) {
    prompts.push_back(some_tokens(640));
    prompts.back().push_back(i);
    ids.push_back(engine.add({.prompt = prompts.back(), .max_tokens = 3}));
  }
  // One that begins otherwise overtakes those that wait.
  std::vector<int32_t> other = some_tokens(10, 5);
  int64_t quick = engine.add({.prompt = other, .max_tokens = 1});
  engine.step();
  EXPECT_EQ(answer(engine, quick), expected_answer(other, 1));
  model.prompt_rows = 0;
  run(engine);
  EXPECT_LE(model.prompt_rows, 641 + 4 * 1);
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(answer(engine, ids[i]), expected_answer(prompts[i], 3));
  }
}

TEST_F(EngineTest, DropsBlocksOutOfEveryWindow) {
  model.traits.window = 100;
  Engine engine(model, backend, caching());
  auto windowed = [](std::vector<int32_t> tokens, int count) {
    std::vector<int32_t> answer;
    for (int i = 0; i < count; ++i) {
      std::vector<int32_t> seen(
          tokens.end() - std::min<ptrdiff_t>(100, ptrdiff_t(tokens.size())),
          tokens.end());
      std::vector<float> logits = fake_logits(seen);
      answer.push_back(argmax(logits));
      tokens.push_back(answer.back());
    }
    return answer;
  };
  std::vector<int32_t> prompt = some_tokens(700);
  int64_t first = engine.add({.prompt = prompt, .max_tokens = 300});
  run(engine);
  EXPECT_EQ(answer(engine, first), windowed(prompt, 300));
  engine.prefix_cache().clear();
  EXPECT_LE(engine.blocks().used(), 3);  // of sixteen
  engine.release(first);

  int64_t second = engine.add({.prompt = prompt, .max_tokens = 70});
  run(engine);
  EXPECT_EQ(answer(engine, second), windowed(prompt, 70));
  engine.release(second);
  std::vector<int32_t> longer = prompt;
  longer.push_back(3);
  int64_t third = engine.add({.prompt = longer, .max_tokens = 70});
  run(engine);
  EXPECT_EQ(engine.num_cached(third), 700);
  EXPECT_EQ(answer(engine, third), windowed(longer, 70));
  engine.release(third);
  engine.prefix_cache().clear();
  EXPECT_EQ(engine.blocks().used(), 0);
}

TEST_F(EngineTest, SharesNothingAcrossTheSwitchOfRotations) {
  model.traits.rope_switch_length = 130;
  Engine engine(model, backend, caching());
  std::vector<int32_t> prompt = some_tokens(300);
  std::vector<int32_t> head(prompt.begin(), prompt.begin() + 128);
  int64_t first = engine.add({.prompt = head, .max_tokens = 90});
  run(engine);
  std::vector<int32_t> grown = head;
  for (int32_t token : answer(engine, first)) {
    grown.push_back(token);
  }
  engine.release(first);
  // The same beginning in a prompt beyond the switch is computed anew.
  int64_t second = engine.add({.prompt = grown, .max_tokens = 1});
  run(engine);
  EXPECT_EQ(engine.num_cached(second), 0);
  engine.release(second);
  grown.resize(130);
  grown.back() += 1;
  int64_t third = engine.add({.prompt = grown, .max_tokens = 1});
  run(engine);
  EXPECT_EQ(engine.num_cached(third), 129);
}

TEST_F(EngineTest, PreemptedAnswersLoseNothing) {
  for (PreemptionPolicy policy :
       {PreemptionPolicy::youngest_first, PreemptionPolicy::longest_first}) {
    for (bool cached : {false, true}) {
      EngineOptions options = cached ? caching(4) : EngineOptions();
      options.max_blocks = 8;
      options.prefill_chunk = 50;
      options.preemption = policy;
      Engine engine(model, backend, options);
      std::map<int64_t, std::vector<int32_t>> expected;
      SamplingParams sampling{.temperature = 0.9f};
      for (int i = 0; i < 6; ++i) {
        std::vector<int32_t> prompt = some_tokens(60 + 20 * i, i);
        sampling.seed = uint64_t(i);
        int64_t id = engine.add(
            {.prompt = prompt, .max_tokens = 200, .sampling = sampling});
        expected[id] = expected_answer(prompt, 200, sampling);
      }
      model.prompt_rows = 0;
      size_t answered = 0;
      while (!engine.idle()) {
        for (const Event& event : engine.step()) {
          if (event.finish != FinishReason::none) {
            EXPECT_EQ(event.finish, FinishReason::length);
            EXPECT_EQ(answer(engine, event.sequence), expected[event.sequence]);
            engine.release(event.sequence);
            ++answered;
          }
        }
      }
      EXPECT_EQ(answered, 6u);
      EXPECT_GT(engine.stats().preemptions, 0);
      EXPECT_EQ(model.prompt_rows, 6 * 60 + 20 * 15);  // each row once
      engine.prefix_cache().clear();
      EXPECT_EQ(engine.blocks().used(), 0);
    }
  }
}

TEST_F(EngineTest, NeitherLongNorShortPromptsStarve) {
  Engine engine(model, backend, {.prefill_chunk = 64});
  int64_t running = engine.add({.prompt = some_tokens(4), .max_tokens = 50});
  engine.step();
  int64_t large = engine.add({.prompt = some_tokens(640), .max_tokens = 1});
  engine.step();
  EXPECT_EQ(engine.info(large).computed, 64);
  int64_t small = engine.add({.prompt = some_tokens(20, 3), .max_tokens = 1});
  engine.step();
  // The newcomer is done at once, and the old prompt got the rest.
  EXPECT_EQ(engine.info(small).state, SequenceState::ended);
  EXPECT_EQ(engine.info(large).computed, 64 + 44);
  EXPECT_EQ(engine.info(running).generated, 3);
  // Whatever comes, half of a step is the oldest prompt's.
  for (int i = 0; i < 8; ++i) {
    engine.add({.prompt = some_tokens(32, 7 + i), .max_tokens = 1});
  }
  engine.step();
  EXPECT_EQ(engine.info(large).computed, 64 + 44 + 32);
}

TEST_F(EngineTest, OneSequencesBadLogitsEndItAlone) {
  Engine engine(model, backend);
  SamplingParams banned;
  for (int i = 0; i < kFakeVocab; ++i) {
    banned.logit_bias.emplace_back(i, -INFINITY);
  }
  std::vector<int32_t> prompt = some_tokens(5);
  int64_t bad = engine.add({.prompt = prompt, .sampling = banned});
  int64_t good = engine.add({.prompt = prompt, .max_tokens = 3});
  auto ends = run(engine);
  EXPECT_EQ(ends[bad], FinishReason::failed);
  EXPECT_THROW(std::rethrow_exception(engine.failure(bad)), Error);
  EXPECT_EQ(answer(engine, good), expected_answer(prompt, 3));
}

TEST_F(EngineTest, ThreadsThatShareTheDrawingChangeNothing) {
  testing::FakeHostBackend host;
  Engine engine(model, host, {.prefill_chunk = 40});
  SamplingParams banned;
  for (int i = 0; i < kFakeVocab; ++i) {
    banned.logit_bias.emplace_back(i, -INFINITY);
  }
  std::vector<int64_t> bad;
  std::map<int64_t, std::vector<int32_t>> expected;
  for (int i = 0; i < 20; ++i) {
    std::vector<int32_t> prompt = some_tokens(3 + i, i);
    SamplingParams sampling{.temperature = i % 3 == 0 ? 0.f : 1.1f};
    sampling.top_k = i % 4 == 0 ? 5 : 0;
    sampling.seed = uint64_t(i);
    int64_t id = engine.add(
        {.prompt = prompt, .max_tokens = 10 + i, .sampling = sampling});
    expected[id] = expected_answer(prompt, 10 + i, sampling);
    if (i % 7 == 3) {
      bad.push_back(engine.add({.prompt = prompt, .sampling = banned}));
    }
  }
  auto ends = run(engine);
  for (const auto& [id, tokens] : expected) {
    EXPECT_EQ(answer(engine, id), tokens) << id;
    EXPECT_EQ(ends[id], FinishReason::length) << id;
  }
  for (int64_t id : bad) {
    EXPECT_EQ(ends[id], FinishReason::failed) << id;
  }
}

TEST_F(EngineTest, CancelStopsASequenceAndKeepsTheOthers) {
  Engine engine(model, backend);
  std::vector<int32_t> prompt = some_tokens(10);
  int64_t kept = engine.add({.prompt = prompt, .max_tokens = 20});
  int64_t dropped = engine.add({.prompt = prompt, .max_tokens = 20});
  for (int i = 0; i < 5; ++i) {
    engine.step();
  }
  engine.cancel(dropped);
  EXPECT_EQ(answer(engine, dropped).size(), 5u);
  engine.release(dropped);
  auto ends = run(engine);
  EXPECT_EQ(ends.size(), 1u);
  EXPECT_EQ(answer(engine, kept), expected_answer(prompt, 20));
}

TEST_F(EngineTest, WaitsForBlocksAndFailsOnlyWhatCanNeverRun) {
  // Four blocks: the first needs two, the second would need three.
  Engine engine(model, backend, {.max_blocks = 4});
  std::vector<int32_t> small = some_tokens(100), large = some_tokens(190);
  int64_t first = engine.add({.prompt = small, .max_tokens = 20});
  int64_t second = engine.add({.prompt = large, .max_tokens = 10});
  FinishReason end = FinishReason::none;
  while (end == FinishReason::none) {
    for (const Event& event : engine.step()) {
      ASSERT_EQ(event.sequence, first);
      end = event.finish;
    }
  }
  EXPECT_EQ(answer(engine, first), expected_answer(small, 20));
  engine.release(first);
  EXPECT_EQ(run(engine)[second], FinishReason::length);
  EXPECT_EQ(answer(engine, second), expected_answer(large, 10));
  engine.release(second);

  int64_t huge = engine.add({.prompt = some_tokens(300), .max_tokens = 1});
  EXPECT_EQ(run(engine)[huge], FinishReason::no_memory);
  engine.release(huge);
  EXPECT_EQ(engine.blocks().used(), 0);
}

TEST_F(EngineTest, AdapterScalesReachTheModel) {
  Engine engine(model, backend);
  std::vector<int32_t> prompt = some_tokens(5);
  int64_t plain = engine.add({.prompt = prompt, .max_tokens = 1});
  int64_t scaled = engine.add(
      {.prompt = prompt, .max_tokens = 1, .adapter_scales = {0.5f, 1}});
  run(engine);
  EXPECT_EQ(answer(engine, plain)[0], argmax(fake_logits(prompt)));
  EXPECT_EQ(answer(engine, scaled)[0], argmax(fake_logits(prompt, 1.5f)));
}

TEST_F(EngineTest, RefusesPromptsThatCannotRun) {
  Engine engine(model, backend, {.max_positions = 8});
  auto message = [&](SequenceOptions options) -> std::string {
    try {
      engine.add(std::move(options));
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  };
  EXPECT_EQ(
      message({}),
      "the prompt is empty: it has no token, so there is nothing to continue\n"
      "  give a prompt");
  EXPECT_EQ(
      message({.prompt = some_tokens(9)}),
      "the prompt is longer than the context: it has 9 tokens, the context 8\n"
      "  shorten the prompt");
  EXPECT_EQ(
      message({.prompt = {1, kFakeVocab}}),
      "token outside the vocabulary: id 97, the model has 97\n"
      "  use the tokenizer that belongs to this model");
  EXPECT_EQ(
      message({.prompt = {-1}}),
      "token outside the vocabulary: id -1, the model has 97\n"
      "  use the tokenizer that belongs to this model");
  EXPECT_EQ(
      message({.prompt = {1}, .sampling = {.top_p = 2}}),
      "invalid top-p: 2 is outside its range\n"
      "  give top-p a number above 0, up to 1 (off)");
  EXPECT_TRUE(engine.idle());
  EXPECT_THAT(
      [&] { engine.info(3); },
      ::testing::ThrowsMessage<Error>(
          "no sequence 3: it was never added, or it was released\n"
          "  ask before release()"));
}

}  // namespace
}  // namespace mlxcel
