// Text that arrives in pieces, searched for marks that a piece may cut.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace mlxcel {

inline constexpr std::string_view kSpaces = " \t\r\n";

// Bytes at the end of `text` that may begin `mark`.
inline size_t begun(std::string_view text, std::string_view mark) {
  size_t most = mark.empty() ? 0 : std::min(text.size(), mark.size() - 1);
  for (size_t n = most; n > 0; --n) {
    if (text.substr(text.size() - n) == mark.substr(0, n)) {
      return n;
    }
  }
  return 0;
}

// May `text`, so far, become a text that begins with `mark`?
inline bool may_begin(std::string_view text, std::string_view mark) {
  return text.size() < mark.size() && mark.substr(0, text.size()) == text;
}

inline std::string_view without_front_space(std::string_view text) {
  size_t first = text.find_first_not_of(kSpaces);
  return first == std::string_view::npos ? std::string_view()
                                         : text.substr(first);
}

inline std::string_view without_end_space(std::string_view text) {
  size_t last = text.find_last_not_of(kSpaces);
  return last == std::string_view::npos ? std::string_view()
                                        : text.substr(0, last + 1);
}

}  // namespace mlxcel
