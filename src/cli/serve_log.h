// What the server logs, in which form and where to.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace mlxcel::cli {

struct LogFlags {
  bool json = false;
  bool disabled = false;    // the access log
  bool prefix = false;      // I, W in front of a line
  bool timestamps = false;  // UTC, in front of a line
  bool verbose = false;
  int verbosity = 3;  // 2 leaves notices out, 1 warnings too
  std::string file;   // where lines go beside standard error
  std::string colors = "auto";
};

void declare_log_options(CLI::App& app, LogFlags& flags);

// From here on the log goes where the flags say. The file is opened for
// appending and only its owner may read it. Throws Error when it cannot be.
void start_log(const LogFlags& flags);

}  // namespace mlxcel::cli
