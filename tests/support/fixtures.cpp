#include "support/fixtures.h"

#include <cstdlib>
#include <set>
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
  std::set<std::string> names;
  for (const fs::path& root :
       {fixture_root(), fs::path(MLXCEL_TEST_FIXTURES)}) {
    if (!fs::exists(root / set)) {
      continue;
    }
    for (const fs::directory_entry& entry :
         fs::directory_iterator(root / set)) {
      if (fs::exists(entry.path() / marker)) {
        names.insert(entry.path().filename().string());
      }
    }
  }
  if (names.empty()) {
    throw std::runtime_error("no fixture cases in " + fixture_root().string());
  }
  return {names.begin(), names.end()};
}

fs::path fixture_folder(const std::string& set, const std::string& name) {
  fs::path folder = fixture_root() / set / name;
  return fs::exists(folder) ? folder
                            : fs::path(MLXCEL_TEST_FIXTURES) / set / name;
}

}  // namespace mlxcel::testing
