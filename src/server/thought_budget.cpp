#include "server/thought_budget.h"

#include "text/token_bytes.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace mlxcel::server {

namespace {

class LimitedThoughts : public TokenConstraint {
 public:
  LimitedThoughts(
      std::shared_ptr<TokenConstraint> inner,
      const ThoughtBudget& budget,
      const Tokenizer& tokenizer,
      int64_t vocab_size)
      : inner_(std::move(inner)),
        tokenizer_(tokenizer),
        open_(budget.marks.open),
        close_(budget.marks.close),
        budget_(budget.tokens),
        closing_(tokenizer.encode(close_, false)),
        words_(size_t(vocab_size + 31) / 32, ~uint32_t(0)),
        state_(budget.begun ? State::thinking : State::before) {
    check_budget();
  }

  std::span<const uint32_t> mask() override {
    std::span<const uint32_t> allowed =
        inner_ ? inner_->mask() : std::span<const uint32_t>(words_);
    if (state_ != State::closing) {
      return allowed;
    }
    size_t token = size_t(closing_[closed_]);
    bool possible =
        token / 32 < allowed.size() && (allowed[token / 32] >> token % 32 & 1);
    if (!possible) {
      // Within a character a grammar allows nothing but its other bytes;
      // elsewhere it is about something else.
      bool waits = closed_ == 0 && !is_utf8(character_);
      state_ = waits ? State::thinking : State::answer;
      return allowed;
    }
    only_.assign(allowed.size(), 0);
    only_[token / 32] = uint32_t(1) << token % 32;
    return only_;
  }

  void accept(int32_t token) override {
    if (inner_) {
      inner_->accept(token);
    }
    if (state_ == State::closing) {
      ++closed_;
      state_ = closed_ == closing_.size() ? State::answer : State::closing;
    } else if (state_ != State::answer) {
      text_ += tokenizer_.decode(std::span(&token, 1), false);
      keep_character(token_bytes(tokenizer_, token));
      read();
    }
  }

  bool finished() const override {
    return inner_ && inner_->finished();
  }

 private:
  enum class State : uint8_t { before, thinking, closing, answer };

  void read() {
    if (state_ == State::before) {
      size_t begin = text_.find_first_not_of(" \t\r\n");
      std::string_view rest = begin == std::string::npos
                                  ? std::string_view()
                                  : std::string_view(text_).substr(begin);
      if (rest.starts_with(open_)) {
        state_ = State::thinking;
        text_.clear();
        check_budget();
      } else if (!open_.starts_with(rest)) {
        state_ = State::answer;  // it does not think
      }
      return;
    }
    ++thought_;
    if (text_.find(close_) != std::string::npos) {
      state_ = State::answer;
      return;
    }
    // Enough to find a mark that the next tokens complete.
    text_.erase(0, text_.size() - std::min(text_.size(), close_.size()));
    check_budget();
  }

  // The last character, as far as it has come.
  void keep_character(std::string_view bytes) {
    character_ += bytes;
    character_.erase(
        0, character_.size() - std::min<size_t>(character_.size(), 4));
    size_t begin = character_.size();
    while (begin > 0 && continues_character(character_[--begin])) {
    }
    character_.erase(0, begin);
  }

  void check_budget() {
    bool spent = state_ == State::thinking && thought_ >= budget_;
    state_ = spent ? State::closing : state_;
  }

  std::shared_ptr<TokenConstraint> inner_;
  const Tokenizer& tokenizer_;
  std::string open_, close_;
  int64_t budget_;
  std::vector<int32_t> closing_;        // the tokens of the closing mark
  std::vector<uint32_t> words_, only_;  // masks: all tokens, one token
  State state_;
  std::string text_;       // of the answer, as far as it still matters
  std::string character_;  // bytes of the last one, which may be incomplete
  int64_t thought_ = 0;    // tokens since the thought began
  size_t closed_ = 0;      // tokens of the closing mark that are drawn
};

}  // namespace

std::shared_ptr<TokenConstraint> limit_thoughts(
    std::shared_ptr<TokenConstraint> inner,
    const ThoughtBudget& budget,
    const Tokenizer& tokenizer,
    int64_t vocab_size) {
  bool limited = budget.tokens >= 0 && *budget.marks.close != '\0' &&
                 !tokenizer.encode(budget.marks.close, false).empty();
  if (!limited) {
    return inner;
  }
  return std::make_shared<LimitedThoughts>(
      std::move(inner), budget, tokenizer, vocab_size);
}

}  // namespace mlxcel::server
