// Sequences held to a constraint: what the engine asks of it, and that others
// in the same steps notice nothing.
#include "engine/engine.h"

#include "core/error.h"
#include "engine/fake_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace mlxcel {
namespace {

using testing::fake_logits;
using testing::FakeBackend;
using testing::FakeModel;
using testing::kFakeVocab;

// Token 3 i + phase at step i's turn of three; ends after `length` tokens.
class EveryThird : public TokenConstraint {
 public:
  explicit EveryThird(int length) : length_(length) {}
  std::span<const uint32_t> mask() override {
    ++masks;
    words_.assign((kFakeVocab + 31) / 32, 0);
    for (int t = 0; t < kFakeVocab; ++t) {
      if (allows(t)) {
        words_[size_t(t) / 32] |= uint32_t(1) << (t % 32);
      }
    }
    return words_;
  }
  void accept(int32_t token) override {
    EXPECT_TRUE(allows(token)) << token;
    accepted.push_back(token);
  }
  bool finished() const override {
    return int(accepted.size()) == length_;
  }
  bool allows(int32_t token) const {
    return token % 3 == int(accepted.size()) % 3;
  }

  std::vector<int32_t> accepted;
  int masks = 0;

 private:
  int length_;
  std::vector<uint32_t> words_;
};

class Failing : public TokenConstraint {
 public:
  std::span<const uint32_t> mask() override {
    throw TextError("the grammar cannot go on", "it is too complex");
  }
  void accept(int32_t) override {}
  bool finished() const override {
    return false;
  }
};

SequenceOptions prompt_of(int first, int64_t max_tokens) {
  SequenceOptions options;
  options.prompt = {first, 5, 11, 40};
  options.max_tokens = max_tokens;
  return options;
}

// The best token of those that the constraint allows, by hand.
std::vector<int32_t> expected(std::vector<int32_t> tokens, int count) {
  std::vector<int32_t> out;
  for (int i = 0; i < count; ++i) {
    std::vector<float> logits = fake_logits(tokens);
    int best = -1;
    for (int t = 0; t < kFakeVocab; ++t) {
      if (t % 3 == i % 3 &&
          (best < 0 || logits[size_t(t)] > logits[size_t(best)])) {
        best = t;
      }
    }
    out.push_back(best);
    tokens.push_back(best);
  }
  return out;
}

std::map<int64_t, FinishReason> run(Engine& engine) {
  std::map<int64_t, FinishReason> ends;
  while (!engine.idle()) {
    for (const Event& event : engine.step()) {
      if (event.finish != FinishReason::none) {
        ends[event.sequence] = event.finish;
      }
    }
  }
  return ends;
}

TEST(EngineConstraintTest, DrawsOnlyWhatTheMaskAllows) {
  FakeModel model;
  FakeBackend backend;
  Engine engine(model, backend);
  auto constraint = std::make_shared<EveryThird>(7);
  SequenceOptions options = prompt_of(1, 100);
  options.constraint = constraint;
  int64_t id = engine.add(options);
  EXPECT_EQ(run(engine)[id], FinishReason::complete);
  std::span<const int32_t> tokens = engine.generated(id);
  EXPECT_THAT(
      std::vector<int32_t>(tokens.begin(), tokens.end()),
      ::testing::ElementsAreArray(expected({1, 5, 11, 40}, 7)));
  EXPECT_EQ(constraint->masks, 7);
}

TEST(EngineConstraintTest, EndsByLengthBeforeItIsComplete) {
  FakeModel model;
  FakeBackend backend;
  Engine engine(model, backend);
  SequenceOptions options = prompt_of(1, 3);
  options.constraint = std::make_shared<EveryThird>(7);
  int64_t id = engine.add(options);
  EXPECT_EQ(run(engine)[id], FinishReason::length);
  EXPECT_EQ(engine.generated(id).size(), 3u);
}

TEST(EngineConstraintTest, LeavesOtherSequencesAlone) {
  FakeModel model;
  FakeBackend backend;
  std::vector<int32_t> alone;
  for (bool constrained : {false, true}) {
    Engine engine(model, backend);
    int64_t id = engine.add(prompt_of(2, 12));
    if (constrained) {
      SequenceOptions other = prompt_of(2, 12);
      other.constraint = std::make_shared<EveryThird>(5);
      engine.add(other);
    }
    run(engine);
    std::span<const int32_t> tokens = engine.generated(id);
    if (!constrained) {
      alone.assign(tokens.begin(), tokens.end());
    } else {
      EXPECT_THAT(
          std::vector<int32_t>(tokens.begin(), tokens.end()),
          ::testing::ElementsAreArray(alone));
    }
  }
}

TEST(EngineConstraintTest, AFailureEndsItsOwnSequenceOnly) {
  FakeModel model;
  FakeBackend backend;
  Engine engine(model, backend);
  SequenceOptions options = prompt_of(3, 9);
  options.constraint = std::make_shared<Failing>();
  int64_t bad = engine.add(options), good = engine.add(prompt_of(3, 9));
  auto ends = run(engine);
  EXPECT_EQ(ends[bad], FinishReason::failed);
  EXPECT_THROW(std::rethrow_exception(engine.failure(bad)), TextError);
  EXPECT_EQ(ends[good], FinishReason::length);
}

}  // namespace
}  // namespace mlxcel
