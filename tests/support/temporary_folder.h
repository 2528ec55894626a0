// A folder of its own for a test, removed at the end.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace mlxcel::testing {

class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const {
    return path_;
  }
  // Writes a file and returns its path.
  std::filesystem::path write(
      const std::string& name, std::string_view content) const;
  std::vector<std::string> files() const;  // names, sorted

 private:
  std::filesystem::path path_;
};

}  // namespace mlxcel::testing
