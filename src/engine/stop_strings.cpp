#include "engine/stop_strings.h"

#include "core/error.h"

#include <algorithm>

namespace mlxcel {

StopStrings::StopStrings(std::vector<std::string> stops)
    : stops_(std::move(stops)) {
  for (const std::string& stop : stops_) {
    if (stop.empty()) {
      throw UsageError(
          "empty stop string",
          "it would match before the first character",
          "leave it out");
    }
  }
}

std::optional<StopStrings::Match> StopStrings::first_whole() const {
  std::optional<Match> best;
  for (size_t i = 0; i < stops_.size(); ++i) {
    size_t begin = held_.find(stops_[i]);
    if (begin != std::string::npos && (!best || Match{begin, i} < *best)) {
      best = Match{begin, i};
    }
  }
  return best;
}

// The first place where the text ends inside a stop string.
std::optional<StopStrings::Match> StopStrings::first_open() const {
  std::optional<Match> best;
  for (size_t i = 0; i < stops_.size(); ++i) {
    const std::string& stop = stops_[i];
    size_t longest = std::min(stop.size() - 1, held_.size());
    for (size_t length = longest; length > 0; --length) {
      size_t begin = held_.size() - length;
      if (held_.compare(begin, length, stop, 0, length) == 0) {
        if (!best || Match{begin, i} < *best) {
          best = Match{begin, i};
        }
        break;
      }
    }
  }
  return best;
}

std::string StopStrings::take(size_t count) {
  std::string out = held_.substr(0, count);
  held_.erase(0, count);
  return out;
}

std::string StopStrings::push(std::string_view text) {
  if (matched_) {
    return {};
  }
  if (stops_.empty()) {
    return std::string(text);
  }
  held_ += text;
  std::optional<Match> whole = first_whole();
  std::optional<Match> open = first_open();
  if (whole && !(open && *open < *whole)) {
    matched_ = whole->stop;
    return take(whole->begin);
  }
  // An earlier match may still come: only the text before it is certain.
  return take(open ? open->begin : held_.size());
}

std::string StopStrings::finish() {
  if (matched_) {
    return {};
  }
  std::optional<Match> whole = first_whole();
  if (whole) {
    matched_ = whole->stop;
  }
  return take(whole ? whole->begin : held_.size());
}

}  // namespace mlxcel
