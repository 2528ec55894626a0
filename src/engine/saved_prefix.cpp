#include "engine/saved_prefix.h"

#include "engine/engine.h"

#include <utility>

namespace mlxcel {

SavedPrefix Engine::save_prefix(
    std::string_view key, std::span<const int32_t> tokens) {
  SavedPrefix saved;
  PrefixCache::Match match = prefix_cache_.find(key, tokens);
  size_t bytes = cache_->block_bytes();
  try {
    saved.key = key;
    saved.tokens.assign(tokens.begin(), tokens.begin() + match.positions);
    for (size_t i = 0; i < match.blocks.size(); ++i) {
      if (match.blocks[i] != kNoBlock) {
        saved.blocks.push_back(int32_t(i));
        saved.content.resize(saved.content.size() + bytes);
        blocks_.save(
            match.blocks[i],
            saved.content.data() + saved.content.size() - bytes);
      }
    }
    bytes = states_.saved_bytes();
    for (const auto& [positions, slot] :
         prefix_cache_.states(key, saved.tokens)) {
      saved.states.push_back(int32_t(positions));
      saved.state_content.resize(saved.state_content.size() + bytes);
      states_.save(
          slot,
          saved.state_content.data() + saved.state_content.size() - bytes);
    }
  } catch (...) {
    give_back(match.blocks);
    throw;
  }
  give_back(match.blocks);
  return saved;
}

std::optional<int64_t> Engine::restore_prefix(const SavedPrefix& saved) {
  std::vector<int32_t> blocks(
      size_t(blocks_for(int64_t(saved.tokens.size()))), kNoBlock);
  try {
    size_t bytes = cache_->block_bytes();
    for (size_t i = 0; i < saved.blocks.size(); ++i) {
      std::optional<int32_t> block = blocks_.allocate();
      if (!block) {
        give_back(blocks);
        return std::nullopt;
      }
      blocks[size_t(saved.blocks[i])] = *block;
      blocks_.load(*block, saved.content.data() + i * bytes);
    }
    std::span<const int32_t> tokens = saved.tokens;
    bytes = states_.saved_bytes();
    for (size_t i = 0; i < saved.states.size(); ++i) {
      const std::byte* content = saved.state_content.data() + i * bytes;
      prefix_cache_.insert(
          saved.key,
          tokens.first(size_t(saved.states[i])),
          blocks,
          states_.allocate_loaded(content));
    }
    prefix_cache_.insert(saved.key, tokens, blocks);
  } catch (...) {
    give_back(blocks);
    throw;
  }
  give_back(blocks);
  PrefixCache::Match match = prefix_cache_.find(saved.key, saved.tokens);
  give_back(match.blocks);
  return match.positions;
}

void Engine::give_back(std::span<const int32_t> blocks) {
  for (int32_t block : blocks) {
    if (block != kNoBlock) {
      blocks_.release(block);
    }
  }
}

}  // namespace mlxcel
