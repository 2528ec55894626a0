// What bounds a sequence and a step.
#include "engine/engine.h"
#include "engine/fake_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

namespace mlxcel {
namespace {

using testing::expected_answer;
using testing::fake_logits;
using testing::FakeBackend;
using testing::FakeModel;
using testing::some_tokens;

struct EngineLimits : ::testing::Test {
  FakeModel model;
  FakeBackend backend;
};

// A full context by a plain loop: half of what follows the kept tokens goes,
// and the answer goes on from the rest.
std::vector<int32_t> shifted_answer(
    std::vector<int32_t> tokens, int count, int context, int keep) {
  std::vector<int32_t> answer;
  Sampler sampler({});
  for (int i = 0; i < count; ++i) {
    std::vector<float> logits = fake_logits(tokens);
    answer.push_back(sampler.sample(logits, tokens, uint64_t(i)));
    tokens.push_back(answer.back());
    if (int(tokens.size()) >= context) {
      int dropped = (int(tokens.size()) - keep) / 2;
      tokens.erase(tokens.begin() + keep, tokens.begin() + keep + dropped);
    }
  }
  return answer;
}

TEST_F(EngineLimits, AShiftedContextGoesOnAsItsRestDoes) {
  for (int kind : {0, 1, 2}) {
    FakeModel fresh;
    fresh.recurrent = kind > 0;
    fresh.traits.whole_sequence = kind > 1;
    // Too few blocks for all: some give way in between.
    Engine engine(
        fresh,
        backend,
        {.prefill_chunk = 30,
         .max_sequences = 3,
         .max_blocks = 6,
         .max_positions = 100,
         .context_shift = true,
         .prefix_cache = {.bytes = 1 << 20, .min_positions = 1}});
    std::map<int64_t, std::vector<int32_t>> expected, drawn;
    for (int keep : {0, 5, 40, -1}) {
      std::vector<int32_t> prompt = some_tokens(70, keep + 2);
      int64_t id =
          engine.add({.prompt = prompt, .max_tokens = 260, .keep = keep});
      expected[id] = shifted_answer(prompt, 260, 100, keep < 0 ? 70 : keep);
    }
    while (!engine.idle()) {
      for (const Event& event : std::vector<Event>(engine.step())) {
        drawn[event.sequence].push_back(event.token);
        if (event.finish != FinishReason::none) {
          EXPECT_EQ(event.finish, FinishReason::length);
          EXPECT_GT(engine.info(event.sequence).shifted, 100);
          EXPECT_EQ(engine.info(event.sequence).num_prompt, 70);
          EXPECT_EQ(engine.info(event.sequence).generated, 260);
          engine.release(event.sequence);
        }
      }
    }
    EXPECT_EQ(drawn, expected);
    engine.prefix_cache().clear();
    EXPECT_EQ(engine.blocks().used(), 0);
    EXPECT_EQ(engine.states().used(), 0);
  }
}

TEST_F(EngineLimits, WholeSequencesAreReadAgainForEachToken) {
  for (bool recurrent : {false, true}) {
    FakeModel fresh;
    fresh.recurrent = recurrent;
    fresh.traits.whole_sequence = true;
    Engine engine(
        fresh,
        backend,
        {.prefill_chunk = 5,
         .prompt_chunk = 2,
         .prefix_cache = {.bytes = 1 << 20, .min_positions = 1},
         .step_seconds = 1e-9});
    std::map<int64_t, std::vector<int32_t>> expected;
    std::vector<int64_t> positions;
    for (int length : {1, 70, 9, 70, 130}) {
      SequenceOptions options{
          .prompt = some_tokens(length, length), .max_tokens = 6};
      if (length == 9) {
        options.all_prompt_logits = true;
        options.on_logits = [&](int64_t position, std::span<const float>) {
          positions.push_back(position);
        };
      }
      int64_t id = engine.add(options);
      expected[id] = expected_answer(some_tokens(length, length), 6);
    }
    while (!engine.idle()) {
      engine.step();
    }
    std::vector<int64_t> each(14);
    std::iota(each.begin(), each.end(), 0);
    EXPECT_EQ(positions, each);
    for (const auto& [id, tokens] : expected) {
      std::span<const int32_t> answer = engine.generated(id);
      EXPECT_EQ(std::vector(answer.begin(), answer.end()), tokens);
      EXPECT_EQ(engine.num_cached(id), 0);
      engine.release(id);
    }
    EXPECT_FALSE(engine.prefix_cache().enabled());
    EXPECT_EQ(engine.blocks().used(), 0);
    EXPECT_EQ(engine.states().used(), 0);
  }
}

// Beside a step's rows of another, a sequence is read when all of it fits.
TEST_F(EngineLimits, WholeSequencesShareAStepWhereTheyFit) {
  model.traits.whole_sequence = true;
  Engine engine(model, backend, {.prefill_chunk = 100});
  for (int length : {60, 50, 30}) {
    engine.add({.prompt = some_tokens(length), .max_tokens = 1});
  }
  engine.step();
  EXPECT_EQ(model.last_step.num_prompt_rows, 90);
  engine.step();
  EXPECT_EQ(model.last_step.num_prompt_rows, 50);
  EXPECT_TRUE(engine.idle());
}

TEST_F(EngineLimits, APromptThatFillsTheContextIsReadWholeBeforeItShifts) {
  std::vector<int32_t> prompt = some_tokens(128);
  std::vector<int32_t> expected = shifted_answer(prompt, 20, 128, 0);
  for (int chunk : {1, 50, 127, 512}) {
    Engine engine(
        model,
        backend,
        {.prefill_chunk = chunk, .max_positions = 128, .context_shift = true});
    int64_t id = engine.add({.prompt = prompt, .max_tokens = 20});
    std::vector<int32_t> drawn;
    while (!engine.idle()) {
      for (const Event& event : engine.step()) {
        drawn.push_back(event.token);
      }
    }
    EXPECT_EQ(drawn, expected) << chunk;
    EXPECT_EQ(engine.info(id).num_prompt, 128);
  }
}

// What the prompt cache shares with the only sequence that runs must not be in
// its way: copies of shared blocks need room that is not there.
TEST_F(EngineLimits, CachedBeginningsGiveWayToASequenceThatFillsTheMemory) {
  for (bool recurrent : {false, true}) {
    FakeModel fresh;
    fresh.recurrent = recurrent;
    Engine engine(
        fresh,
        backend,
        {.prefill_chunk = 60,
         .max_sequences = 3,
         .max_blocks = 3,
         .max_positions = 192,
         .prefix_cache = {.bytes = 1 << 20, .min_positions = 1}});
    std::map<int64_t, std::vector<int32_t>> expected, drawn;
    auto add = [&](int length, int count) {
      std::vector<int32_t> prompt = some_tokens(length);
      int64_t id = engine.add({.prompt = prompt, .max_tokens = count});
      expected[id] = expected_answer(prompt, count);
    };
    auto run = [&] {
      while (!engine.idle()) {
        for (const Event& event : std::vector<Event>(engine.step())) {
          drawn[event.sequence].push_back(event.token);
          if (event.finish != FinishReason::none) {
            EXPECT_EQ(event.finish, FinishReason::length);
            engine.release(event.sequence);
          }
        }
      }
    };
    for (int length : {134, 182, 182, 190, 182, 150}) {
      add(length, 192 - length);
      run();
    }
    // Together: each waits until it is alone.
    for (int i = 0; i < 3; ++i) {
      add(182, 10);
    }
    run();
    EXPECT_EQ(drawn, expected);
    engine.prefix_cache().clear();
    EXPECT_EQ(engine.blocks().used(), 0);
    EXPECT_EQ(engine.states().used(), 0);
  }
}

TEST_F(EngineLimits, BoundsOnPromptsOfAStepHold) {
  Engine engine(
      model,
      backend,
      {.prefill_chunk = 20, .prompt_chunk = 6, .max_prefills = 2});
  std::map<int64_t, std::vector<int32_t>> expected;
  for (int length : {50, 9, 33, 21}) {
    std::vector<int32_t> prompt = some_tokens(length, length);
    expected[engine.add({.prompt = prompt, .max_tokens = 4})] =
        expected_answer(prompt, 4);
  }
  int most = 0;
  while (!engine.idle()) {
    engine.step();
    int prompts = 0;
    for (const Segment& segment : model.last_step.segments) {
      prompts += segment.prompt ? 1 : 0;
      EXPECT_LE(segment.num_rows, 6);
    }
    EXPECT_LE(prompts, 2);
    most = std::max(most, prompts);
  }
  EXPECT_EQ(most, 2);
  for (const auto& [id, tokens] : expected) {
    std::span<const int32_t> drawn = engine.generated(id);
    EXPECT_EQ(std::vector<int32_t>(drawn.begin(), drawn.end()), tokens);
  }
}

// A million logits a row: 64 MiB hold those of 16 rows.
class WideModel : public FakeModel {
 public:
  static constexpr int64_t kVocab = int64_t(1) << 20;
  int64_t vocab_size() const override {
    return kVocab;
  }
  Tensor forward(const Step& step, KvCache&) override {
    most = std::max(most, step.output_rows.size());
    auto storage = std::make_shared<testing::FakeStorage>();
    storage->values.resize(step.output_rows.size() * size_t(kVocab));
    return {DType::f32, int64_t(step.output_rows.size()), kVocab, storage};
  }
  size_t most = 0;
};

TEST_F(EngineLimits, LogitsOfWholePromptsTakeSoMuchAStepOverAllOfThem) {
  WideModel wide;
  Engine engine(wide, backend);
  int64_t seen = 0;
  for (int i = 0; i < 3; ++i) {
    SequenceOptions options{.prompt = some_tokens(20), .max_tokens = 0};
    options.all_prompt_logits = true;
    options.on_logits = [&](int64_t, std::span<const float>) { ++seen; };
    engine.add(std::move(options));
  }
  while (!engine.idle()) {
    engine.step();
  }
  EXPECT_EQ(wide.most, 16u);
  EXPECT_EQ(seen, 60);
}

}  // namespace
}  // namespace mlxcel
