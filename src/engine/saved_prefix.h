// A beginning that the prefix cache holds, as bytes that outlive the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace mlxcel {

struct SavedPrefix {
  std::string key;  // what it was computed with: PrefixCache::find()
  std::vector<int32_t> tokens;  // none: the cache holds nothing of use
  // Which of the tokens' blocks are here, ascending: those that a model with a
  // window no longer looks at are not.
  std::vector<int32_t> blocks;
  std::vector<std::byte> content;  // KvCache::save_block() of each, in order
  // After how many of the tokens recurrent states were kept, ascending.
  std::vector<int32_t> states;
  std::vector<std::byte> state_content;  // StateCopies::save_state() of each
};

}  // namespace mlxcel
