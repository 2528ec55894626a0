#include "engine/prefix_cache.h"

#include <algorithm>

namespace mlxcel {

bool PrefixCache::Less::operator()(
    std::span<const int32_t> left, std::span<const int32_t> right) const {
  return std::lexicographical_compare(
      left.begin(), left.end(), right.begin(), right.end());
}

PrefixCache::PrefixCache(
    BlockManager& manager,
    StateSlots& states,
    const PrefixCacheOptions& options,
    int64_t window)
    : manager_(manager),
      slots_(states),
      options_(options),
      window_(window),
      max_blocks_(options.bytes / std::max<int64_t>(1, manager.block_bytes())) {
  if (states.needed()) {
    max_states_ =
        std::min(options.max_states, options.state_bytes / states.bytes());
    // Without a state nothing can be used.
    max_blocks_ = max_states_ > 0 ? max_blocks_ : 0;
  }
}

PrefixCache::~PrefixCache() {
  clear();
}

void PrefixCache::clear() {
  while (!uses_.empty()) {
    remove_leaf(*uses_.back());
  }
}

PrefixCache::Node& PrefixCache::root(std::string_view key) {
  auto found = roots_.find(key);
  if (found == roots_.end()) {
    found = roots_.try_emplace(std::string(key)).first;
    found->second.key = &found->first;
  }
  return found->second;
}

std::pair<PrefixCache::Node*, size_t> PrefixCache::nearest(
    Node& node, std::span<const int32_t> tokens) {
  std::pair<Node*, size_t> best{nullptr, 0};
  auto consider = [&](Children::iterator child) {
    const std::vector<int32_t>& other = child->first;
    size_t common = size_t(
        std::mismatch(tokens.begin(), tokens.end(), other.begin(), other.end())
            .first -
        tokens.begin());
    if (common > best.second) {
      best = {child->second.get(), common};
    }
  };
  auto above = node.children.lower_bound(tokens);
  if (above != node.children.end()) {
    consider(above);
  }
  if (above != node.children.begin()) {
    consider(std::prev(above));
  }
  return best;
}

std::pair<std::vector<PrefixCache::Node*>, int64_t> PrefixCache::follow(
    Node& root, std::span<const int32_t> tokens) {
  std::vector<Node*> path;
  int64_t positions = 0;
  for (Node* node = &root; node != nullptr;) {
    std::span<const int32_t> rest = tokens.subspan(size_t(positions));
    auto [child, common] =
        nearest(*node, rest.first(std::min(rest.size(), size_t(kKvBlockSize))));
    if (child != nullptr) {
      path.push_back(child);
      positions += int64_t(common);
    }
    node = common == size_t(kKvBlockSize) ? child : nullptr;
  }
  return {std::move(path), positions};
}

PrefixCache::Match PrefixCache::find(
    std::string_view key, std::span<const int32_t> tokens) {
  Match match;
  if (!enabled()) {
    return match;
  }
  drop_expired();
  auto found = roots_.find(key);
  if (found == roots_.end()) {
    return match;
  }
  auto [path, positions] = follow(found->second, tokens);
  positions = usable(path, positions);
  if (positions < std::max<int64_t>(1, options_.min_positions)) {
    return match;
  }
  match.positions = positions;
  match.blocks.assign(size_t(blocks_for(positions)), kNoBlock);
  for (int64_t i = first_needed(positions); i < blocks_for(positions); ++i) {
    match.blocks[size_t(i)] = path[size_t(i)]->block;
    manager_.retain(path[size_t(i)]->block);
  }
  int64_t last = blocks_for(positions) - 1;
  if (slots_.needed()) {
    match.state =
        path[size_t(last)]->states.at(size_t(positions - last * kKvBlockSize));
  }
  touch(path[size_t(last)]);
  return match;
}

std::vector<PrefixCache::KeptState> PrefixCache::states(
    std::string_view key, std::span<const int32_t> tokens) {
  std::vector<KeptState> out;
  auto found = roots_.find(key);
  if (found == roots_.end()) {
    return out;
  }
  auto [path, positions] = follow(found->second, tokens);
  for (size_t i = 0; i < path.size(); ++i) {
    for (const auto& [length, slot] : path[i]->states) {
      int64_t after = int64_t(i) * kKvBlockSize + int64_t(length);
      if (after <= positions) {
        out.push_back({after, slot});
      }
    }
  }
  return out;
}

// The first block that a row at this position looks at: it sees the positions
// above its own minus the window.
int64_t PrefixCache::first_needed(int64_t positions) const {
  return window_ > 0
             ? std::max<int64_t>(0, positions - window_ + 1) / kKvBlockSize
             : 0;
}

int64_t PrefixCache::usable(
    const std::vector<Node*>& path, int64_t positions) const {
  while (positions > 0) {
    int64_t last = blocks_for(positions) - 1;
    if (slots_.needed()) {
      // Back to the nearest state.
      const auto& states = path[size_t(last)]->states;
      auto state = states.upper_bound(size_t(positions - last * kKvBlockSize));
      if (state == states.begin()) {
        positions = last * kKvBlockSize;
        continue;
      }
      positions = last * kKvBlockSize + int64_t(std::prev(state)->first);
    }
    // All blocks that are looked at must be here.
    int64_t i = last;
    while (i >= first_needed(positions) && path[size_t(i)]->block != kNoBlock) {
      --i;
    }
    if (i < first_needed(positions)) {
      return positions;
    }
    positions = slots_.needed() ? positions - 1 : i * kKvBlockSize;
  }
  return 0;
}

void PrefixCache::count_lookup(int64_t positions, int64_t found) {
  ++stats_.lookups;
  stats_.hits += found > 0 ? 1 : 0;
  stats_.looked_up_positions += positions;
  stats_.hit_positions += found;
}

void PrefixCache::insert(
    std::string_view key,
    std::span<const int32_t> tokens,
    std::span<const int32_t> blocks,
    int32_t state) {
  if (!enabled() || tokens.empty() ||
      (state >= 0 && int64_t(tokens.size()) < options_.min_state_positions)) {
    slots_.release(state);
    return;
  }
  Node* node = &root(key);
  Node* end = nullptr;
  for (size_t i = 0; i * kKvBlockSize < tokens.size(); ++i) {
    std::span<const int32_t> part = tokens.subspan(i * kKvBlockSize);
    part = part.first(std::min(part.size(), size_t(kKvBlockSize)));
    auto [child, common] = nearest(*node, part);
    if (child != nullptr && common == part.size()) {
      if (child->block == kNoBlock && blocks[i] != kNoBlock &&
          common == child->tokens().size()) {
        hold(*child, blocks[i]);
      }
    } else if (child != nullptr && common == child->tokens().size()) {
      child = extend(*child, part, blocks[i]);
    } else {
      child = add_child(*node, part, blocks[i]);
    }
    end = child;
    if (part.size() < size_t(kKvBlockSize)) {
      break;
    }
    node = child;
  }
  touch(end);
  if (state >= 0) {
    add_state(*end, (tokens.size() - 1) % size_t(kKvBlockSize) + 1, state);
  }
  keep_within_budget();
}

void PrefixCache::add_state(Node& node, size_t length, int32_t state) {
  if (node.states.emplace(length, state).second) {
    ++num_states_;
  } else {
    slots_.release(state);
  }
}

void PrefixCache::drop_states(Node& node) {
  for (const auto& [length, state] : node.states) {
    slots_.release(state);
  }
  num_states_ -= int64_t(node.states.size());
  node.states.clear();
}

PrefixCache::Node* PrefixCache::add_child(
    Node& parent, std::span<const int32_t> tokens, int32_t block) {
  // A parent that was a leaf hands its place among the leaves on.
  bool parent_was_leaf = parent.parent != nullptr && parent.children.empty();
  auto place = parent.children
                   .emplace(
                       std::vector<int32_t>(tokens.begin(), tokens.end()),
                       std::make_unique<Node>())
                   .first;
  Node& node = *place->second;
  node.parent = &parent;
  node.place = place;
  uses_.push_front(&node);
  node.use = uses_.begin();
  node.used = Clock::now();
  num_leaves_ += parent_was_leaf ? 0 : 1;
  hold(node, block);
  return &node;
}

// A part full leaf makes place for a longer one that begins with it.
PrefixCache::Node* PrefixCache::extend(
    Node& node, std::span<const int32_t> tokens, int32_t block) {
  Children& siblings = node.parent->children;
  auto handle = siblings.extract(node.place);
  handle.key().assign(tokens.begin(), tokens.end());
  auto inserted = siblings.insert(std::move(handle));
  node.place = inserted.position;
  let_go(node);
  hold(node, block);
  return &node;
}

void PrefixCache::hold(Node& node, int32_t block) {
  node.block = block;
  if (block != kNoBlock) {
    manager_.retain(block);
    ++num_blocks_;
    ++stats_.inserted_blocks;
  }
}

void PrefixCache::let_go(Node& node) {
  if (node.block != kNoBlock) {
    manager_.release(node.block);
    --num_blocks_;
    node.block = kNoBlock;
  }
}

void PrefixCache::touch(Node* end) {
  Clock::time_point now = Clock::now();
  for (Node* node = end; node != nullptr && node->parent; node = node->parent) {
    uses_.splice(uses_.begin(), uses_, node->use);
    node->used = now;
  }
}

void PrefixCache::remove_leaf(Node& node) {
  Node* parent = node.parent;
  let_go(node);
  drop_states(node);
  uses_.erase(node.use);
  parent->children.erase(node.place);  // destroys the node
  ++stats_.evicted_blocks;
  // The parent is a leaf now, unless it is a root.
  bool parent_is_leaf = parent->parent != nullptr && parent->children.empty();
  num_leaves_ -= parent_is_leaf ? 0 : 1;
  // Clients choose the scales that keys stand for: roots must not add up.
  if (parent->parent == nullptr && parent->children.empty()) {
    roots_.erase(roots_.find(*parent->key));
  }
}

void PrefixCache::keep_within_budget() {
  // The oldest use is always a leaf's: touch() goes from ends to roots.
  while (num_blocks_ > max_blocks_ || num_leaves_ > options_.max_entries) {
    remove_leaf(*uses_.back());
  }
  for (auto use = uses_.rbegin(); num_states_ > max_states_; ++use) {
    drop_states(**use);
  }
}

void PrefixCache::drop_expired() {
  Clock::time_point oldest = Clock::now() - options_.lifetime;
  while (!uses_.empty() && uses_.back()->used < oldest) {
    remove_leaf(*uses_.back());
  }
  if (num_states_ == 0 || options_.state_lifetime >= options_.lifetime) {
    return;
  }
  oldest = Clock::now() - options_.state_lifetime;
  for (auto use = uses_.rbegin(); use != uses_.rend(); ++use) {
    if ((*use)->used >= oldest) {
      break;
    }
    drop_states(**use);
  }
}

bool PrefixCache::let_go_oldest() {
  if (uses_.empty()) {
    return false;
  }
  remove_leaf(*uses_.back());
  return true;
}

void PrefixCache::forget(
    std::string_view key, std::span<const int32_t> tokens) {
  auto found = roots_.find(key);
  if (found == roots_.end()) {
    return;
  }
  auto [path, positions] = follow(found->second, tokens);
  // The last node may hold tokens of others beyond these.
  int64_t begin = int64_t(path.size()) * kKvBlockSize - kKvBlockSize;
  if (!path.empty() &&
      positions < begin + int64_t(path.back()->tokens().size())) {
    path.pop_back();
  }
  while (!path.empty() && path.back()->children.empty()) {
    remove_leaf(*path.back());
    path.pop_back();
  }
}

bool PrefixCache::reclaim() {
  for (auto use = uses_.end(); use != uses_.begin();) {
    Node& node = **--use;
    bool leaf = node.children.empty();
    bool absent = node.block == kNoBlock;
    if (!leaf || (!absent && manager_.references(node.block) > 1)) {
      continue;  // a running sequence holds the block: nothing to gain
    }
    ++use;
    remove_leaf(node);
    if (!absent) {
      return true;
    }
  }
  return false;
}

}  // namespace mlxcel
