// The options that only the server has, a group a file.
#pragma once

#include "cli/serve_log.h"
#include "cli/unbuilt_options.h"
#include "server/server.h"

#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace mlxcel::cli {

// What needs a second look before it is a server's option, by group.
struct NetworkFlags {
  std::vector<std::string> api_keys;
  std::string api_key_file;
  std::string origins;
  int64_t timeout = 3600;
  int64_t ping_interval = 30;
};

struct CapacityFlags {
  bool continuous = true;
  bool no_batch = false;
  int64_t prefill_chunk = 0, prefill_total = 0;  // 0: not given
  int64_t physical_batch = 0;
  int64_t decode_timeout = 0;
  int64_t sleep_after = -1;
  std::string kv_budget = "auto";
  std::string preemption = "longest-first";
};

struct CacheFlags {
  bool prompt_cache = true, blocks = true, snapshots = true;
  bool no_prompt_cache = false;
  std::string prompt_bytes = "2GiB", snapshot_bytes = "512MiB";
  int64_t ram_mib = -1;
  int64_t ttl = 3600, snapshot_ttl = 7200;
  int64_t block_size = 16, num_blocks = 0;
};

struct TextFlags {
  std::string thinking = "auto";
  std::string alias_field = "reasoning";
  bool skip_parsing = false;
};

struct RopeFlags {
  std::string scaling;
  double scale = 0, base = 0, frequency_scale = 0;  // 0: not given
};

struct ServeFlags {
  bool estimate_memory = false;
  bool no_memory_check = false;
  NetworkFlags network;
  CapacityFlags capacity;
  CacheFlags cache;
  TextFlags text;
  RopeFlags rope;
  LogFlags log;
};

void declare_serve_options(
    CLI::App& app, ServeFlags& flags, server::ServerOptions& options);
// Lists the short names of the options declared so far below the help.
void describe_short_names(CLI::App& app);
// Gives the server's options, those of sampling and of models included, the
// names that they have in the environment.
void declare_serve_environment(CLI::App& app);
// Throws UsageError for values that make no sense.
void finish_serve_options(
    const ServeFlags& flags, server::ServerOptions& options);
std::vector<UnbuiltOption> serve_unbuilt_options();
// refuse_unbuilt of those options' variables in the environment.
void refuse_unbuilt_serve_variables(const UnbuiltOptions& options);

// The parts of the above.
void declare_network_options(
    CLI::App& app, NetworkFlags& flags, server::ServerOptions& options);
void declare_capacity_options(
    CLI::App& app, CapacityFlags& flags, server::ServerOptions& options);
void declare_cache_options(
    CLI::App& app, CacheFlags& flags, server::ServerOptions& options);
void declare_text_options(
    CLI::App& app,
    TextFlags& flags,
    RopeFlags& rope,
    server::ServerOptions& options);
void finish_network(const NetworkFlags& flags, http::Options& options);
void finish_capacity(
    const CapacityFlags& flags, server::CapacityOptions& options);
void finish_cache(const CacheFlags& flags, server::CapacityOptions& options);
void finish_text(const TextFlags& flags, server::ServerOptions& options);
RopeOverride rope_override(const RopeFlags& flags);

// Puts the option under that heading of the help.
CLI::Option* in(const char* group, CLI::Option* option);
// "2GiB", "500M", "1048576". Throws UsageError that names the flag.
int64_t parse_bytes(const std::string& flag, const std::string& text);
// A switch that takes a value too: --name, --name true, --name=false.
CLI::Option* add_switch(
    CLI::App& app,
    const std::string& names,
    bool& value,
    const std::string& help);

}  // namespace mlxcel::cli
