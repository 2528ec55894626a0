// The options that only the server has.
#pragma once

#include "cli/unbuilt_options.h"
#include "server/server.h"

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace mlxcel::cli {

// What needs a second look before it is a server's option.
struct ServeFlags {
  bool estimate_memory = false;
  bool no_memory_check = false;
  std::vector<std::string> api_keys;
  std::string api_key_file;
  std::string kv_budget = "auto";
  std::string prompt_cache_bytes = "2GiB";
  std::string snapshot_bytes = "512MiB";
  int64_t cache_ram_mib = -1;
  int64_t prompt_cache_ttl = 3600;
  bool no_prompt_cache = false;
  bool no_batch = false;
  std::string preemption = "longest-first";
  int64_t timeout = 3600;
  int64_t ping_interval = 30;
  std::string origins;
  bool log_json = false;
  bool log_disable = false;
};

void declare_serve_options(
    CLI::App& app, ServeFlags& flags, server::ServerOptions& options);
// Throws UsageError for values that make no sense.
void finish_serve_options(
    const ServeFlags& flags, server::ServerOptions& options);
std::vector<UnbuiltOption> serve_unbuilt_options();

}  // namespace mlxcel::cli
