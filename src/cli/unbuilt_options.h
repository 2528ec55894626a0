// Options of the wider command line that are refused by name unless they stand
// at the value that changes nothing.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace mlxcel::cli {

struct UnbuiltOption {
  std::string flag;                  // "--kv-bits"
  std::string subject;               // "a quantized KV cache"
  std::vector<std::string> neutral;  // accepted values; empty: none
  std::vector<std::string> given;    // filled by the parse
  bool flag_only = false;
};

using UnbuiltOptions = std::shared_ptr<std::vector<UnbuiltOption>>;

// Declares them, and those of one command alone, hidden from the help.
UnbuiltOptions declare_unbuilt_options(
    CLI::App& app, std::vector<UnbuiltOption> more = {});
// Throws UsageError for the first one given with another value.
void refuse_unbuilt(const UnbuiltOptions& options);

}  // namespace mlxcel::cli
