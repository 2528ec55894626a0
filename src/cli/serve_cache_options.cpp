// The cache of prompts: blocks of keys and values, and recurrent states.
#include "cli/serve_options.h"

#include "core/error.h"

#include <CLI/CLI.hpp>

namespace mlxcel::cli {

namespace {

constexpr const char* kCacheGroup = "Prompt cache";

void declare_snapshots(
    CLI::App& app, CacheFlags& flags, PrefixCacheOptions& cache) {
  in(kCacheGroup,
     add_switch(
         app,
         "--snapshot-cache-enabled",
         flags.snapshots,
         "Whether it keeps recurrent states"));
  in(kCacheGroup,
     app.add_option(
            "--snapshot-cache-capacity-bytes",
            flags.snapshot_bytes,
            "What its recurrent states may hold")
         ->capture_default_str());
  in(kCacheGroup,
     app.add_option(
            "--snapshot-cache-max-entries",
            cache.max_states,
            "How many of them it keeps")
         ->check(CLI::Range(int64_t(1), int64_t(1) << 30))
         ->capture_default_str());
  in(kCacheGroup,
     app.add_option(
            "--snapshot-cache-ttl",
            flags.snapshot_ttl,
            "Seconds that it keeps those that nobody asks for")
         ->check(CLI::Range(int64_t(1), int64_t(1) << 31))
         ->capture_default_str());
  in(kCacheGroup,
     app.add_option(
            "--snapshot-cache-min-prefix",
            cache.min_state_positions,
            "States after fewer tokens are not kept")
         ->check(CLI::Range(int64_t(1), int64_t(1) << 31))
         ->capture_default_str());
}

// Upstream's block cache is the same radix tree here.
void declare_blocks(CLI::App& app, CacheFlags& flags) {
  in(kCacheGroup,
     add_switch(
         app,
         "--apc-enabled",
         flags.blocks,
         "Whether sequences share blocks; false is --no-prompt-cache"));
  in(kCacheGroup,
     app.add_option(
            "--apc-block-size",
            flags.block_size,
            "Positions of a block as --apc-num-blocks counts them; prompts "
            "share to the token")
         ->check(CLI::Range(int64_t(1), int64_t(1) << 20))
         ->capture_default_str());
  in(kCacheGroup,
     app.add_option(
            "--apc-num-blocks",
            flags.num_blocks,
            "Blocks that the cache may hold; 0 for what its bytes allow")
         ->check(CLI::Range(int64_t(0), int64_t(1) << 40))
         ->capture_default_str());
  in(kCacheGroup,
     app.add_option_function<std::string>(
            "--apc-hash",
            [](const std::string&) {},
            "sha256 or blake3: the tokens themselves are compared, so either "
            "holds")
         ->check(CLI::IsMember({"sha256", "blake3"})));
}

}  // namespace

void declare_cache_options(
    CLI::App& app, CacheFlags& flags, server::ServerOptions& options) {
  PrefixCacheOptions& cache = options.capacity.prefix_cache;
  in(kCacheGroup,
     app.add_flag(
         "--no-prompt-cache",
         flags.no_prompt_cache,
         "Compute every prompt whole"));
  in(kCacheGroup,
     add_switch(
         app,
         "--prompt-cache-enabled",
         flags.prompt_cache,
         "The same as a switch"));
  in(kCacheGroup,
     app.add_flag(
         "--cache-prompt{true},--no-cache-prompt{false}",
         options.defaults.cache_prompt,
         "Whether requests that do not say so use the cache"));
  in(kCacheGroup,
     app.add_option(
            "--prompt-cache-capacity-bytes",
            flags.prompt_bytes,
            "What it may hold")
         ->capture_default_str());
  in(kCacheGroup,
     app.add_option(
            "--cache-ram",
            flags.ram_mib,
            "The same in MiB; 0 for none, -1 for the former")
         ->check(CLI::Range(int64_t(-1), int64_t(1) << 40)));
  in(kCacheGroup,
     app.add_option(
            "--prompt-cache-max-entries",
            cache.max_entries,
            "Ends of sequences that it keeps")
         ->check(CLI::Range(1, 1 << 30))
         ->capture_default_str());
  in(kCacheGroup,
     app.add_option(
            "--prompt-cache-ttl",
            flags.ttl,
            "Seconds that it keeps what nobody asks for")
         ->check(CLI::Range(int64_t(1), int64_t(1) << 31))
         ->capture_default_str());
  in(kCacheGroup,
     app.add_option(
            "--prompt-cache-min-prefix",
            cache.min_positions,
            "Shorter common beginnings are computed again")
         ->check(CLI::Range(int64_t(1), int64_t(1) << 31))
         ->capture_default_str());
  declare_snapshots(app, flags, cache);
  declare_blocks(app, flags);
}

void finish_cache(const CacheFlags& flags, server::CapacityOptions& capacity) {
  PrefixCacheOptions& cache = capacity.prefix_cache;
  cache.bytes =
      parse_bytes("--prompt-cache-capacity-bytes", flags.prompt_bytes);
  cache.state_bytes =
      parse_bytes("--snapshot-cache-capacity-bytes", flags.snapshot_bytes);
  if (flags.ram_mib >= 0) {
    cache.bytes = flags.ram_mib << 20;
  }
  if (flags.no_prompt_cache || !flags.prompt_cache || !flags.blocks) {
    cache.bytes = 0;
  }
  if (!flags.snapshots) {
    cache.state_bytes = 0;
  }
  cache.lifetime = std::chrono::seconds(flags.ttl);
  cache.state_lifetime = std::chrono::seconds(flags.snapshot_ttl);
  capacity.prefix_positions = flags.num_blocks * flags.block_size;
}

}  // namespace mlxcel::cli
