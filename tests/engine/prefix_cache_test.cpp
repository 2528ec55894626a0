#include "engine/prefix_cache.h"

#include "engine/fake_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace mlxcel {
namespace {

using ::testing::ElementsAre;
using testing::FakeCache;

constexpr int64_t kBytes = kKvBlockSize * sizeof(int32_t);

struct PrefixCacheTest : ::testing::Test {
  FakeCache cache;
  BlockManager manager{cache, 20};
  StateSlots states{cache};

  // Blocks for this many positions, and their owner's reference given up.
  void insert(
      PrefixCache& prefixes,
      const std::vector<int32_t>& tokens,
      std::string_view key = "") {
    std::vector<int32_t> blocks;
    for (int64_t i = 0; i < blocks_for(int64_t(tokens.size())); ++i) {
      blocks.push_back(*manager.allocate());
    }
    prefixes.insert(key, tokens, blocks);
    for (int32_t block : blocks) {
      manager.release(block);
    }
  }
  int64_t found(
      PrefixCache& prefixes,
      const std::vector<int32_t>& tokens,
      std::string_view key = "") {
    PrefixCache::Match match = prefixes.find(key, tokens);
    EXPECT_EQ(int64_t(match.blocks.size()), blocks_for(match.positions));
    for (int32_t block : match.blocks) {
      manager.release(block);
    }
    return match.positions;
  }
};

std::vector<int32_t> counting(int count, int first = 0) {
  std::vector<int32_t> tokens(size_t(count), 0);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

TEST_F(PrefixCacheTest, FindsTheLongestCommonBeginning) {
  PrefixCache prefixes(
      manager, states, {.bytes = 20 * kBytes, .min_positions = 1}, 0);
  insert(prefixes, counting(200));
  std::vector<int32_t> branch = counting(150);
  branch[140] = 7;
  insert(prefixes, branch);
  EXPECT_EQ(prefixes.num_blocks(), 4 + 1);  // they part in the third block
  EXPECT_EQ(prefixes.num_entries(), 2);
  EXPECT_EQ(found(prefixes, counting(300)), 200);
  EXPECT_EQ(found(prefixes, counting(120)), 120);
  EXPECT_EQ(found(prefixes, branch), 150);
  branch[145] = 9;
  EXPECT_EQ(found(prefixes, branch), 145);
  EXPECT_EQ(found(prefixes, counting(50, 1)), 0);
  EXPECT_EQ(found(prefixes, counting(200), "other"), 0);
}

TEST_F(PrefixCacheTest, ALongerEndTakesThePlaceOfAShorterOne) {
  PrefixCache prefixes(
      manager, states, {.bytes = 20 * kBytes, .min_positions = 1}, 0);
  insert(prefixes, counting(70));
  insert(prefixes, counting(100));
  insert(prefixes, counting(80));
  EXPECT_EQ(prefixes.num_blocks(), 2);
  EXPECT_EQ(prefixes.num_entries(), 1);
  EXPECT_EQ(found(prefixes, counting(128)), 100);
  EXPECT_EQ(manager.used(), 2);
}

TEST_F(PrefixCacheTest, TheLeastRecentlyUsedEndGoesFirst) {
  PrefixCache prefixes(
      manager, states, {.bytes = 4 * kBytes, .min_positions = 1}, 0);
  insert(prefixes, counting(128));
  insert(prefixes, counting(128, 1000));
  EXPECT_EQ(found(prefixes, counting(128)), 128);  // used again
  insert(prefixes, counting(64, 2000));
  EXPECT_EQ(found(prefixes, counting(128)), 128);
  EXPECT_EQ(found(prefixes, counting(128, 1000)), 64);
  EXPECT_EQ(prefixes.num_blocks(), 4);
}

TEST_F(PrefixCacheTest, ReclaimLeavesWhatIsInUse) {
  PrefixCache prefixes(
      manager, states, {.bytes = 20 * kBytes, .min_positions = 1}, 0);
  insert(prefixes, counting(128));
  insert(prefixes, counting(64, 1000));
  PrefixCache::Match match = prefixes.find("", counting(64));
  EXPECT_TRUE(prefixes.reclaim());  // the second block
  EXPECT_TRUE(prefixes.reclaim());  // the other entry
  EXPECT_FALSE(prefixes.reclaim());
  EXPECT_EQ(found(prefixes, counting(128)), 64);
  manager.release(match.blocks[0]);
  EXPECT_TRUE(prefixes.reclaim());
  EXPECT_EQ(manager.used(), 0);
  EXPECT_EQ(prefixes.num_entries(), 0);
}

TEST_F(PrefixCacheTest, HoldsNoMoreEntriesThanAllowed) {
  PrefixCache prefixes(
      manager,
      states,
      {.bytes = 20 * kBytes, .max_entries = 2, .min_positions = 1},
      0);
  for (int i = 0; i < 4; ++i) {
    insert(prefixes, counting(64, 1000 * i));
  }
  EXPECT_EQ(prefixes.num_entries(), 2);
  EXPECT_EQ(found(prefixes, counting(64, 1000)), 0);
  EXPECT_EQ(found(prefixes, counting(64, 3000)), 64);
}

TEST_F(PrefixCacheTest, AKeyGoesWithTheLastOfItsBlocks) {
  PrefixCache prefixes(
      manager, states, {.bytes = 3 * kBytes, .min_positions = 1}, 0);
  for (int i = 0; i < 50; ++i) {
    insert(prefixes, counting(70), "scale " + std::to_string(i));
    EXPECT_LE(prefixes.num_keys(), 2u);  // three blocks, two of the last key
  }
  EXPECT_EQ(found(prefixes, counting(70), "scale 49"), 70);
  prefixes.forget("scale 49", counting(70));
  while (prefixes.let_go_oldest()) {
  }
  EXPECT_EQ(prefixes.num_keys(), 0u);
  insert(prefixes, counting(70), "scale 49");
  EXPECT_EQ(found(prefixes, counting(70), "scale 49"), 70);
}

TEST_F(PrefixCacheTest, ForgetsWhatIsOlderThanItsLifetime) {
  PrefixCache prefixes(
      manager,
      states,
      {.bytes = 20 * kBytes,
       .min_positions = 1,
       .lifetime = std::chrono::seconds(-1)},
      0);
  insert(prefixes, counting(64));
  EXPECT_EQ(found(prefixes, counting(64)), 0);
  EXPECT_EQ(manager.used(), 0);
}

TEST_F(PrefixCacheTest, ShortMatchesAreLeftAlone) {
  PrefixCache prefixes(
      manager, states, {.bytes = 20 * kBytes, .min_positions = 32}, 0);
  insert(prefixes, counting(64));
  EXPECT_EQ(found(prefixes, counting(31)), 0);
  EXPECT_EQ(found(prefixes, counting(32)), 32);
}

TEST_F(PrefixCacheTest, AWindowNeedsItsOwnBlocksOnly) {
  PrefixCache prefixes(
      manager, states, {.bytes = 20 * kBytes, .min_positions = 1}, 60);
  std::vector<int32_t> blocks = {
      kNoBlock, kNoBlock, *manager.allocate(), *manager.allocate()};
  prefixes.insert("", counting(256), blocks);
  PrefixCache::Match match = prefixes.find("", counting(256));
  EXPECT_EQ(match.positions, 256);
  EXPECT_THAT(
      match.blocks, ElementsAre(kNoBlock, kNoBlock, kNoBlock, blocks[3]));
  // Position 180 looks back to 121, in the absent second block.
  EXPECT_EQ(prefixes.find("", counting(180)).positions, 0);
  EXPECT_EQ(prefixes.find("", counting(190)).positions, 190);
}

TEST_F(PrefixCacheTest, AMatchEndsWhereAStateWasKept) {
  FakeCache stateful({.layers = {{.state = 1}}});
  BlockManager blocks(stateful, 20);
  StateSlots slots(stateful);
  // Each state takes four bytes: two of them fit.
  PrefixCache prefixes(
      blocks,
      slots,
      {.bytes = 20 * kBytes, .state_bytes = 8, .min_positions = 1},
      0);
  auto keep = [&](const std::vector<int32_t>& tokens) {
    std::vector<int32_t> own;
    for (int64_t i = 0; i < blocks_for(int64_t(tokens.size())); ++i) {
      own.push_back(*blocks.allocate());
    }
    prefixes.insert("", tokens, own, slots.allocate());
    for (int32_t block : own) {
      blocks.release(block);
    }
  };
  auto length_of = [&](const std::vector<int32_t>& tokens) {
    PrefixCache::Match match = prefixes.find("", tokens);
    for (int32_t block : match.blocks) {
      blocks.release(block);
    }
    EXPECT_EQ(match.state >= 0, match.positions > 0);
    return match.positions;
  };
  keep(counting(100));
  keep(counting(130));
  EXPECT_EQ(length_of(counting(99)), 0);
  EXPECT_EQ(length_of(counting(100)), 100);
  EXPECT_EQ(length_of(counting(129)), 100);
  EXPECT_EQ(length_of(counting(200)), 130);
  keep(counting(64, 1000));  // the third: the oldest use gives way
  EXPECT_EQ(prefixes.num_states(), 2);
  EXPECT_EQ(length_of(counting(64, 1000)), 64);
  prefixes.clear();
  EXPECT_EQ(blocks.used(), 0);
  EXPECT_EQ(slots.used(), 0);
}

}  // namespace
}  // namespace mlxcel
