// DRY's sequence breakers as users give them: texts that a repeated run never
// crosses.
#pragma once

#include "text/tokenizer.h"

#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace mlxcel {

// Where nothing else is asked for; llama-server's.
std::vector<std::string> default_dry_breakers();

// Throws UsageError for an empty text.
void check_dry_breakers(const std::vector<std::string>& breakers);

// The text of every token. For any thread.
class TokenTexts {
 public:
  // The tokenizer stays the caller's.
  explicit TokenTexts(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // Sorted ids of the tokens whose text holds one of these, for SamplingParams.
  // Throws UsageError as the check does.
  std::vector<int32_t> holding(const std::vector<std::string>& breakers) const;

 private:
  const Tokenizer& tokenizer_;
  mutable std::mutex mutex_;
  mutable std::vector<std::string> texts_;  // filled on first use
  mutable std::map<std::vector<std::string>, std::vector<int32_t>> found_;
};

}  // namespace mlxcel
