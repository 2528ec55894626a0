#include "text/tokenizer.h"

#include <algorithm>

namespace mlxcel {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// Ids held back while the text ends in U+FFFD. A character has at most four
// bytes, so after this many it is no unfinished character that is waited for.
constexpr size_t kMaxHeld = 8;

bool unfinished(std::string_view text) {
  return text.ends_with(kReplacement);
}

}  // namespace

StreamDecoder::StreamDecoder(
    const Tokenizer& tokenizer, bool skip_special, std::vector<int32_t> kept)
    : tokenizer_(tokenizer),
      skip_special_(skip_special),
      kept_(std::move(kept)) {}

// The text of the first `count` ids behind the last piece; they become the
// context of what follows.
std::string StreamDecoder::take(size_t count) {
  std::span<const int32_t> ids(ids_);
  std::string text = tokenizer_.decode(ids.first(sent_ + count), skip_special_);
  std::string piece;
  if (text.starts_with(sent_text_)) {
    piece = text.substr(sent_text_.size());
  } else {  // a byte run that turned ill-formed: leave the context out
    piece = tokenizer_.decode(ids.subspan(sent_, count), skip_special_);
  }
  if (piece.empty()) {
    return piece;  // the context stays: it is what spaces are judged by
  }
  ids_.erase(ids_.begin(), ids_.begin() + int64_t(sent_));
  sent_ = count;
  sent_text_ = tokenizer_.decode(
      std::span<const int32_t>(ids_).first(count), skip_special_);
  return piece;
}

std::string StreamDecoder::push(int32_t id) {
  if (skip_special_ && tokenizer_.is_special(id)) {
    if (std::find(kept_.begin(), kept_.end(), id) == kept_.end()) {
      return {};  // decode() leaves it out before anything else
    }
    return finish() + tokenizer_.token_text(id);
  }
  ids_.push_back(id);
  size_t held = ids_.size() - sent_;
  std::string text = tokenizer_.decode(ids_, skip_special_);
  if (!unfinished(text)) {
    return take(held);
  }
  if (held < kMaxHeld) {
    return {};
  }
  // Everything but what may still be an unfinished character at the end: the
  // cut that leaves the text unchanged.
  std::span<const int32_t> ids(ids_);
  for (size_t tail = 3; tail > 0; --tail) {
    size_t count = held - tail;
    if (tokenizer_.decode(ids.first(sent_ + count), skip_special_) +
            tokenizer_.decode(ids.subspan(sent_ + count), skip_special_) ==
        text) {
      return take(count);
    }
  }
  return take(held);
}

std::string StreamDecoder::finish() {
  std::string rest = take(ids_.size() - sent_);
  ids_.clear();
  sent_ = 0;
  sent_text_.clear();
  return rest;
}

}  // namespace mlxcel
