// Patterns over tensor keys: anchored at both ends, case sensitive; `*` stands
// for any characters, dots included, `?` for one, `[a-c]` for one of a class
// (`[!a-c]`: for one outside it); everything else is itself.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mlxcel {

class Glob {
 public:
  // Throws SurgeryError for an empty pattern, an unclosed or empty class, or a
  // range that runs backwards.
  explicit Glob(std::string pattern);

  const std::string& text() const {
    return text_;
  }
  size_t stars() const;
  bool matches(std::string_view key) const;
  // What each `*` stands for, in order; the earlier ones as short as possible.
  std::optional<std::vector<std::string>> captures(std::string_view key) const;

 private:
  struct Part {
    enum Kind { literal, any, one, set } kind;
    char letter = 0;
    std::vector<std::pair<unsigned char, unsigned char>> ranges;
    bool negated = false;
    bool accepts(char c) const;
  };

  std::string text_;
  std::vector<Part> parts_;
};

// `pattern` with its stars replaced by the captures in order.
std::string fill_stars(
    std::string_view pattern, const std::vector<std::string>& captures);

}  // namespace mlxcel
