// Stop strings over a stream of text. The match that begins earliest wins, ties
// go to the order of the list, and the answer ends before it. Text that may
// still be part of the deciding match is held back, so what was handed out is
// never taken back, and the result does not depend on how the text was cut.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mlxcel {

class StopStrings {
 public:
  explicit StopStrings(std::vector<std::string> stops);  // none may be empty

  // Adds text; returns what is certain to belong to the answer.
  std::string push(std::string_view text);
  // The text has ended: returns the rest of the answer.
  std::string finish();

  // The stop string that ended the answer, by index.
  std::optional<size_t> matched() const {
    return matched_;
  }
  const std::vector<std::string>& stops() const {
    return stops_;
  }

 private:
  struct Match {
    size_t begin;
    size_t stop;
    bool operator<(const Match& other) const {
      return begin != other.begin ? begin < other.begin : stop < other.stop;
    }
  };
  std::optional<Match> first_whole() const;
  std::optional<Match> first_open() const;
  std::string take(size_t count);

  std::vector<std::string> stops_;
  std::string held_;
  std::optional<size_t> matched_;
};

}  // namespace mlxcel
