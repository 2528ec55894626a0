#include "server/served_model.h"

#include "text/token_bytes.h"

#include <span>

namespace mlxcel::server {

std::vector<int32_t> TokenTexts::holding(
    const std::vector<std::string>& parts) const {
  std::lock_guard lock(mutex_);
  auto known = found_.find(parts);
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
    for (const std::string& part : parts) {
      if (!part.empty() && texts_[id].find(part) != std::string::npos) {
        ids.push_back(int32_t(id));
        break;
      }
    }
  }
  constexpr size_t kRemembered = 64;  // lists that clients sent
  if (found_.size() < kRemembered) {
    found_.emplace(parts, ids);
  }
  return ids;
}

std::string ServedModel::piece(int32_t token) const {
  return to_utf8(token_bytes(*tokenizer, token));
}

}  // namespace mlxcel::server
