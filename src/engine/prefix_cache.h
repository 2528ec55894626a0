// Keys and values of what was computed before, for prompts that begin alike.
//
// A radix tree of blocks for each key: a node holds the tokens of one block and
// the block itself, shared with whoever uses it. Only leaves may be part full.
// The least recently used leaf goes first.
//
// Models with recurrent state can go on only from where a state was kept: a
// match ends there.
#pragma once

#include "engine/block_manager.h"
#include "engine/state_slots.h"

#include <chrono>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mlxcel {

struct PrefixCacheOptions {
  int64_t bytes = 0;                         // of blocks held; 0: no cache
  int64_t state_bytes = int64_t(512) << 20;  // of recurrent states beside them
  int max_entries = 1024;                    // ends of sequences held
  int64_t min_positions = 32;  // shorter matches are not worth a lookup
  std::chrono::seconds lifetime{3600};  // since the last use
  int64_t max_states = 4096;            // recurrent states held
  int64_t min_state_positions = 1;      // states after fewer are not kept
  std::chrono::seconds state_lifetime{7200};
};

struct PrefixCacheStats {
  int64_t lookups = 0, hits = 0;
  int64_t looked_up_positions = 0, hit_positions = 0;
  int64_t inserted_blocks = 0, evicted_blocks = 0;
};

// Placeholder for a block that no layer looks at any more.
constexpr int32_t kNoBlock = -1;

class PrefixCache {
 public:
  using Clock = std::chrono::steady_clock;

  // `window`: how far back the model looks; 0 without a limit.
  PrefixCache(
      BlockManager& manager,
      StateSlots& states,
      const PrefixCacheOptions& options,
      int64_t window);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  bool enabled() const {
    return max_blocks_ > 0;
  }

  struct Match {
    int64_t positions = 0;
    // One a block of the positions, retained for the caller; kNoBlock where no
    // layer looks.
    std::vector<int32_t> blocks;
    // The cache's slot of the state after the positions, to be copied before
    // the next call; -1: the model keeps none.
    int32_t state = -1;
  };
  // The longest usable common beginning under this key. Keys tell apart what
  // equal tokens were computed with.
  Match find(std::string_view key, std::span<const int32_t> tokens);

  // The states that are kept of beginnings of these tokens, the shortest first.
  struct KeptState {
    int64_t positions = 0;  // after which it stands
    int32_t slot = -1;
  };
  std::vector<KeptState> states(
      std::string_view key, std::span<const int32_t> tokens);

  // For the statistics: a sequence of this many reusable positions began with
  // this many from the cache.
  void count_lookup(int64_t positions, int64_t found);

  // Shares the blocks that hold these tokens. What is cached already stays.
  // Takes the slot of the state after the last token.
  void insert(
      std::string_view key,
      std::span<const int32_t> tokens,
      std::span<const int32_t> blocks,
      int32_t state = -1);

  // Drops these tokens' blocks from the last one on, up to one with which other
  // tokens go on.
  void forget(std::string_view key, std::span<const int32_t> tokens);

  // Gives up the least recently used block that only the cache holds; false
  // when there is none.
  bool reclaim();
  // Gives up the least recently used block, also one that a sequence uses,
  // which may then belong to that alone; false when there is none.
  bool let_go_oldest();
  void drop_expired();
  void clear();

  int64_t num_blocks() const {
    return num_blocks_;
  }
  int num_entries() const {
    return num_leaves_;
  }
  int64_t max_blocks() const {
    return max_blocks_;
  }
  int64_t num_states() const {
    return num_states_;
  }
  size_t num_keys() const {  // under which something is held
    return roots_.size();
  }
  const PrefixCacheStats& stats() const {
    return stats_;
  }

 private:
  struct Node;
  // Lexicographic, so that the longest common beginning is a neighbour.
  struct Less {
    using is_transparent = void;
    bool operator()(
        std::span<const int32_t> left, std::span<const int32_t> right) const;
  };
  using Children = std::map<std::vector<int32_t>, std::unique_ptr<Node>, Less>;
  struct Node {
    Node* parent = nullptr;            // null: a root
    const std::string* key = nullptr;  // of a root
    Children::iterator place;
    Children children;
    int32_t block = kNoBlock;
    // Slots by how many of the node's tokens they come after.
    std::map<size_t, int32_t> states;
    std::list<Node*>::iterator use;
    Clock::time_point used;
    const std::vector<int32_t>& tokens() const {
      return place->first;
    }
  };

  Node& root(std::string_view key);
  // The child with the longest common beginning, and its length.
  static std::pair<Node*, size_t> nearest(
      Node& node, std::span<const int32_t> tokens);
  // The path of nodes that begin like the tokens, and how far they agree.
  static std::pair<std::vector<Node*>, int64_t> follow(
      Node& root, std::span<const int32_t> tokens);
  Node* add_child(Node& parent, std::span<const int32_t> tokens, int32_t block);
  Node* extend(Node& node, std::span<const int32_t> tokens, int32_t block);
  // Marks a path as used, from its end to the root, so that a node never looks
  // older than what lies below it.
  void touch(Node* end);
  void hold(Node& node, int32_t block);
  void let_go(Node& node);
  // The largest length up to `positions` from which a sequence can go on.
  int64_t usable(const std::vector<Node*>& path, int64_t positions) const;
  int64_t first_needed(int64_t positions) const;
  void add_state(Node& node, size_t length, int32_t state);
  void drop_states(Node& node);
  void remove_leaf(Node& node);
  void keep_within_budget();

  BlockManager& manager_;
  StateSlots& slots_;
  PrefixCacheOptions options_;
  int64_t window_;
  int64_t max_blocks_;
  int64_t max_states_ = 0;
  int64_t num_blocks_ = 0;
  int64_t num_states_ = 0;
  int num_leaves_ = 0;
  std::map<std::string, Node, std::less<>> roots_;
  std::list<Node*> uses_;  // the most recent first
  PrefixCacheStats stats_;
};

}  // namespace mlxcel
