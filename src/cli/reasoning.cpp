#include "cli/reasoning.h"

namespace mlxcel::cli {

namespace {

constexpr std::string_view kOpen = "<think>", kClose = "</think>";
constexpr std::string_view kSpace = " \t\r\n";

std::string_view without_end_space(std::string_view text) {
  size_t last = text.find_last_not_of(kSpace);
  return last == std::string_view::npos ? "" : text.substr(0, last + 1);
}

}  // namespace

ReasoningFilter::ReasoningFilter(bool hide, std::string_view prompt)
    : state_(
          !hide                                        ? State::answer
          : without_end_space(prompt).ends_with(kOpen) ? State::thinking
                                                       : State::start) {}

std::string ReasoningFilter::push(std::string_view piece) {
  if (state_ == State::answer) {
    return std::string(piece);
  }
  held_ += piece;
  if (state_ == State::start) {
    size_t begin = held_.find_first_not_of(kSpace);
    if (begin == std::string::npos) {
      return {};
    }
    std::string_view text = std::string_view(held_).substr(begin);
    if (text.starts_with(kOpen)) {
      state_ = State::thinking;
    } else if (kOpen.starts_with(text)) {
      return {};
    } else {
      state_ = State::answer;
      return std::move(held_);
    }
  }
  if (state_ == State::thinking) {
    size_t end = held_.find(kClose);
    if (end == std::string::npos) {
      return {};
    }
    held_.erase(0, end + kClose.size());
    state_ = State::gap;
  }
  size_t begin = held_.find_first_not_of(kSpace);
  if (begin == std::string::npos) {
    return {};
  }
  state_ = State::answer;
  held_.erase(0, begin);
  return std::move(held_);
}

std::string ReasoningFilter::finish() {
  bool plain = state_ == State::start;
  state_ = State::answer;
  return plain ? std::move(held_) : std::string();
}

}  // namespace mlxcel::cli
