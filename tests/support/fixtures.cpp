#include "support/fixtures.h"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>

namespace mlxcel::testing {

namespace fs = std::filesystem;

fs::path fixture_root() {
  const char* named = std::getenv("MLXCEL_FIXTURES");
  return named != nullptr && *named != '\0' ? fs::path(named)
                                            : fs::path(MLXCEL_TEST_FIXTURES);
}

std::vector<std::string> fixture_cases(
    const std::string& set, const std::string& marker) {
  std::vector<std::string> names;
  fs::path root = fixture_root() / set;
  for (const fs::directory_entry& entry : fs::directory_iterator(root)) {
    if (fs::exists(entry.path() / marker)) {
      names.push_back(entry.path().filename().string());
    }
  }
  if (names.empty()) {
    throw std::runtime_error("no fixture cases in " + root.string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace mlxcel::testing
