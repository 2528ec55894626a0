// Where a file goes that is written beside its final place and then renamed.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace mlxcel {

struct OutputTarget {
  std::filesystem::path path;  // what links lead to, not the link itself
  std::optional<mode_t> mode;  // permissions of the file that is replaced
};

// Throws CheckpointError for what a rename would destroy: a device, pipe,
// socket or folder that stands there.
OutputTarget output_target(const std::filesystem::path& path);

// A file that takes its final name only when all of it is on disk; without
// commit() nothing of it stays. Throws CheckpointError for what cannot be
// written, as output_target() does.
class PendingFile {
 public:
  explicit PendingFile(const std::filesystem::path& path);
  ~PendingFile();
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;

  void write(const void* data, size_t size);
  void commit();

 private:
  void write_out(const std::byte* from, size_t size);
  void check(bool ok) const;
  void discard();

  std::filesystem::path path_;
  std::string temporary_;
  int fd_ = -1;
  std::vector<std::byte> pending_;  // what has not made a whole page yet
};

}  // namespace mlxcel
