// Commands, options and variables of the wider command line that are refused by
// name, options and variables unless they stand at the value that changes
// nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
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

enum class Program : uint8_t { any, server };

// The same of the environment.
void refuse_unbuilt_variables(Program program = Program::any);

// Throws UsageError when the command is one of those not built; returns
// otherwise.
void refuse_unbuilt_command(std::string_view command);

}  // namespace mlxcel::cli
