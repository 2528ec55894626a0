#include "engine/dry_breakers.h"

#include "core/error.h"

#include <span>

namespace mlxcel {

std::vector<std::string> default_dry_breakers() {
  return {"\n", ":", "\"", "*"};
}

void check_dry_breakers(const std::vector<std::string>& breakers) {
  for (const std::string& breaker : breakers) {
    if (breaker.empty()) {
      throw UsageError(
          "empty DRY sequence breaker",
          "every token's text holds it, so no repeated run would be left",
          "give at least one character");
    }
  }
}

std::vector<int32_t> TokenTexts::holding(
    const std::vector<std::string>& breakers) const {
  check_dry_breakers(breakers);
  std::lock_guard lock(mutex_);
  auto known = found_.find(breakers);
  if (known != found_.end()) {
    return known->second;
  }
  if (texts_.empty()) {
    texts_.reserve(size_t(tokenizer_.vocab_size()));
    for (int32_t id = 0; id < tokenizer_.vocab_size(); ++id) {
      texts_.push_back(tokenizer_.decode(std::span(&id, 1), false));
    }
  }
  std::vector<int32_t> ids;
  for (size_t id = 0; id < texts_.size(); ++id) {
    for (const std::string& breaker : breakers) {
      if (texts_[id].find(breaker) != std::string::npos) {
        ids.push_back(int32_t(id));
        break;
      }
    }
  }
  constexpr size_t kRemembered = 64;  // lists that clients sent
  if (found_.size() < kRemembered) {
    found_.emplace(breakers, ids);
  }
  return ids;
}

}  // namespace mlxcel
