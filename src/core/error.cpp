#include "core/error.h"

#include <algorithm>
#include <numeric>

namespace mlxcel {

namespace {

std::string join(
    const std::string& what, const std::string& why, const std::string& fix) {
  std::string out = what;
  if (!why.empty()) {
    out += ": " + why;
  }
  if (!fix.empty()) {
    out += "\n  " + fix;
  }
  return out;
}

// Levenshtein distance, case ignored.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t(0));
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      bool same = std::tolower(static_cast<unsigned char>(a[i - 1])) ==
                  std::tolower(static_cast<unsigned char>(b[j - 1]));
      size_t best =
          std::min({row[j] + 1, row[j - 1] + 1, diagonal + (same ? 0 : 1)});
      diagonal = row[j];
      row[j] = best;
    }
  }
  return row[b.size()];
}

}  // namespace

Error::Error(std::string what, std::string why, std::string fix)
    : std::runtime_error(join(what, why, fix)),
      summary_(std::move(what)),
      why_(std::move(why)),
      fix_(std::move(fix)) {}

std::vector<std::string> nearest_names(
    std::string_view name,
    const std::vector<std::string>& known,
    size_t limit) {
  std::vector<std::pair<size_t, const std::string*>> ranked;
  ranked.reserve(known.size());
  for (const std::string& candidate : known) {
    ranked.emplace_back(edit_distance(name, candidate), &candidate);
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](auto& a, auto& b) {
    return a.first < b.first;
  });
  std::vector<std::string> out;
  for (const auto& [distance, candidate] : ranked) {
    // Past half of its letters a name is no likely slip any more.
    if (out.size() == limit ||
        distance > std::max<size_t>(2, name.size() / 2)) {
      break;
    }
    out.push_back(*candidate);
  }
  return out;
}

std::string did_you_mean(
    std::string_view name, const std::vector<std::string>& known) {
  std::vector<std::string> near = nearest_names(name, known);
  if (near.empty()) {
    return {};
  }
  std::string out = "did you mean ";
  for (size_t i = 0; i < near.size(); ++i) {
    out += (i == 0 ? "" : i + 1 == near.size() ? " or " : ", ") + near[i];
  }
  return out + "?";
}

}  // namespace mlxcel
