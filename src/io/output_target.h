// Where a file goes that is written beside its final place and then renamed.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>

namespace mlxcel {

struct OutputTarget {
  std::filesystem::path path;  // what links lead to, not the link itself
  std::optional<mode_t> mode;  // permissions of the file that is replaced
};

// Throws CheckpointError for what a rename would destroy: a device, pipe,
// socket or folder that stands there.
OutputTarget output_target(const std::filesystem::path& path);

}  // namespace mlxcel
