#include "io/output_target.h"

#include "core/error.h"

#include <sys/stat.h>

namespace mlxcel {

namespace fs = std::filesystem;

OutputTarget output_target(const fs::path& path) {
  constexpr int kMaxLinks = 40;  // as Linux follows at most
  OutputTarget out{path, std::nullopt};
  std::error_code error;
  for (int i = 0; fs::is_symlink(out.path, error); ++i) {
    fs::path next = fs::read_symlink(out.path, error);
    if (error || i == kMaxLinks) {
      throw CheckpointError(
          cat("cannot write ", path.string()),
          "its links lead nowhere",
          "name another file");
    }
    out.path = out.path.parent_path() / next;
  }
  struct stat info{};
  if (::stat(out.path.c_str(), &info) != 0) {
    return out;  // nothing to replace; opening says what else is wrong
  }
  if (!S_ISREG(info.st_mode)) {
    throw CheckpointError(
        cat("cannot write ", path.string()),
        S_ISDIR(info.st_mode)
            ? "it is a folder"
            : "it is a device, a pipe or a socket, and the file takes its "
              "place when it is complete",
        "name a file");
  }
  out.mode = info.st_mode & 07777;
  return out;
}

}  // namespace mlxcel
