#include "text/reasoning.h"

#include "core/error.h"
#include "text/held_text.h"

namespace mlxcel {

ReasoningFormat reasoning_format(std::string_view name) {
  if (name == "none") {
    return ReasoningFormat::none;
  }
  if (name == "deepseek" || name == "auto") {
    return ReasoningFormat::deepseek;
  }
  if (name == "deepseek-legacy") {
    return ReasoningFormat::deepseek_legacy;
  }
  throw UsageError(
      "unknown reasoning format",
      cat("'", name, "' is none of none, deepseek, deepseek-legacy and auto"),
      "give one of these");
}

PromptEnd end_of_prompt(std::string_view prompt, const Marks& reasoning) {
  std::string_view open = without_end_space(reasoning.open);
  return !open.empty() && without_end_space(prompt).ends_with(open)
             ? PromptEnd::thinking
             : PromptEnd::answer;
}

ReasoningSplitter::ReasoningSplitter(
    const Marks& marks, ReasoningFormat format, PromptEnd prompt)
    : open_(without_end_space(marks.open)),
      close_(marks.close),
      repeat_(format == ReasoningFormat::deepseek_legacy),
      state_(
          format == ReasoningFormat::none || close_.empty() ? State::answer
          : prompt == PromptEnd::thinking                   ? State::begin
                                                            : State::start) {}

std::string ReasoningSplitter::push(
    std::string_view text, std::string* answer) {
  if (state_ == State::answer) {
    answer->append(text);
    return {};
  }
  held_ += text;
  if (state_ == State::start || state_ == State::begin) {
    // The mark may come although the prompt has it already.
    std::string_view seen = without_front_space(held_);
    if (seen.empty() || may_begin(seen, open_)) {
      return {};
    }
    if (seen.starts_with(open_)) {
      size_t behind = size_t(seen.data() - held_.data()) + open_.size();
      if (repeat_) {
        answer->append(held_, 0, behind);
      }
      held_.erase(0, behind);
      state_ = State::thinking;
    } else if (state_ == State::begin) {
      state_ = State::thinking;
    } else {
      state_ = State::answer;
      answer->append(held_);
      held_.clear();
      return {};
    }
  }
  return thoughts(answer, false);
}

std::string ReasoningSplitter::thoughts(std::string* answer, bool all) {
  std::string out;
  if (state_ == State::thinking) {
    size_t end = held_.find(close_);
    bool closed = end != std::string::npos;
    size_t ready = closed ? end
                   : all  ? held_.size()
                          : held_.size() - begun(held_, close_);
    std::string part = held_.substr(0, ready);
    held_.erase(0, closed ? end + close_.size() : ready);
    if (repeat_) {
      answer->append(part);
      answer->append(closed ? close_ : std::string());
    }
    // Spaces at the end of the thoughts are left out.
    part.insert(0, spaces_);
    std::string_view body =
        begun_ ? std::string_view(part) : without_front_space(part);
    std::string_view text = without_end_space(body);
    spaces_ = body.substr(text.size());
    begun_ = begun_ || !text.empty();
    out = text;
    if (!closed) {
      return out;
    }
    state_ = State::gap;
  }
  if (state_ == State::gap) {
    size_t front = held_.size() - without_front_space(held_).size();
    if (repeat_) {
      answer->append(held_, 0, front);
    }
    held_.erase(0, front);
    if (!held_.empty()) {
      state_ = State::answer;
      answer->append(held_);
      held_.clear();
    }
  }
  return out;
}

std::string ReasoningSplitter::finish(std::string* answer) {
  std::string out;
  if (state_ == State::start) {
    answer->append(held_);
    held_.clear();
  } else {
    if (state_ == State::begin) {
      state_ = State::thinking;
    }
    out = thoughts(answer, true);
  }
  state_ = State::answer;
  return out;
}

}  // namespace mlxcel
