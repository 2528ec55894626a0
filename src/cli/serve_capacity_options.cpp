// How much runs together, how prompts are read, and the memory of sequences.
#include "cli/serve_options.h"

#include "core/error.h"

#include <CLI/CLI.hpp>

#include <algorithm>

namespace mlxcel::cli {

namespace {

// The least of the values that are given.
int64_t least(std::initializer_list<int64_t> values, int64_t otherwise) {
  int64_t out = 0;
  for (int64_t value : values) {
    out = value > 0 && (out == 0 || value < out) ? value : out;
  }
  return out > 0 ? out : otherwise;
}

void declare_context(
    CLI::App& app, CapacityFlags& flags, server::ServerOptions& options) {
  constexpr const char* kGroup = "Context";
  server::CapacityOptions& capacity = options.capacity;
  in(kGroup,
     app.add_option(
            "-c,--ctx-size",
            capacity.ctx_size,
            "Positions of context, shared by the slots; 0 for the model's own "
            "in each")
         ->check(CLI::Range(int64_t(0), int64_t(1) << 40))
         ->capture_default_str());
  in(kGroup,
     app.add_option(
            "--max-kv-size",
            capacity.max_positions,
            "Positions that one sequence may have at most; 0 for those of its "
            "slot")
         ->check(CLI::Range(int64_t(0), int64_t(1) << 40))
         ->capture_default_str());
  in(kGroup,
     app.add_flag(
         "--context-shift{true},--no-context-shift{false}",
         capacity.context_shift,
         "Go on when the context is full: half of what follows the kept "
         "tokens is dropped, and the rest is read again"));
  in(kGroup,
     app.add_option(
            "--keep",
            options.defaults.keep,
            "Tokens of the prompt that a shift leaves; -1 for all")
         ->check(CLI::Range(int64_t(-1), int64_t(1) << 40))
         ->capture_default_str());
  in(kGroup,
     app.add_option(
            "--decode-timeout",
            flags.decode_timeout,
            "Seconds after which an answer ends as at a limit; 0 for none")
         ->check(CLI::Range(int64_t(0), int64_t(1) << 31))
         ->capture_default_str());
}

void declare_batching(
    CLI::App& app, CapacityFlags& flags, server::CapacityOptions& capacity) {
  constexpr const char* kGroup = "Batching";
  auto tokens = [&app](const char* names, int64_t& value, const char* help) {
    return in(
        kGroup,
        app.add_option(names, value, help)
            ->check(CLI::Range(int64_t(1), int64_t(1) << 20)));
  };
  in(kGroup,
     app.add_option(
            "--parallel,--max-batch-size",
            capacity.slots,
            "Sequences that run together; -1 for automatic")
         ->check(CLI::Range(-1, 4096))
         ->capture_default_str());
  in(kGroup,
     app.add_flag(
         "--cont-batching{true},--no-cont-batching{false}",
         flags.continuous,
         "Whether requests join those that run; else one runs after the "
         "other"));
  in(kGroup,
     app.add_flag(
         "--no-batch", flags.no_batch, "Run one sequence after the other"));
  in(kGroup,
     app.add_option(
            "--max-queue-depth",
            capacity.max_queued,
            "Sequences that may wait; further requests get 503")
         ->check(CLI::Range(0, 1 << 20))
         ->capture_default_str());
  tokens(
      "--prefill-chunk-size",
      flags.prefill_chunk,
      "Tokens of one prompt that a step reads at most; 512, or as many as a "
      "step reads of all");
  tokens(
      "--max-batch-prefill-tokens,-b,--batch-size",
      flags.prefill_total,
      "Tokens of all prompts that a step reads at most");
  tokens(
      "--ubatch-size",
      flags.physical_batch,
      "The same; the smaller one counts");
  in(kGroup,
     app.add_option(
            "--max-batch-prefill",
            capacity.max_prefills,
            "Prompts that a step reads at most; 0 for no limit")
         ->check(CLI::Range(0, 1 << 20))
         ->capture_default_str());
  in(kGroup,
     app.add_option(
            "--prefill-grant-interval",
            capacity.grant_interval,
            "Steps after which waiting prompts get a share at the latest; "
            "every step gives them one, so any value holds")
         ->check(CLI::Range(1, 1 << 20))
         ->capture_default_str());
  in(kGroup,
     app.add_option(
            "--step-time",
            capacity.step_seconds,
            "Seconds that a step may take while answers run: prompts are read "
            "in smaller chunks then; 0 for no limit")
         ->check(CLI::Range(0.0, 3600.0))
         ->capture_default_str());
}

}  // namespace

void declare_capacity_options(
    CLI::App& app, CapacityFlags& flags, server::ServerOptions& options) {
  declare_context(app, flags, options);
  declare_batching(app, flags, options.capacity);
  constexpr const char* kGroup = "Memory";
  in(kGroup,
     app.add_option(
            "--kv-cache-budget",
            flags.kv_budget,
            "Memory for keys and values, such as 4GiB")
         ->capture_default_str());
  in(kGroup,
     app.add_option(
            "--kv-admission-watermark",
            options.capacity.admission_watermark,
            "Share of it that newcomers leave free")
         ->check(CLI::Range(0.0, 1.0))
         ->capture_default_str());
  in(kGroup,
     app.add_flag_callback(
         "--enable-preemption",
         [] {},
         "Let sequences give way when it is full, which they always do"));
  in(kGroup,
     app.add_option(
            "--preemption-policy",
            flags.preemption,
            "Which sequence gives way when it is full; nothing is lost")
         ->check(CLI::IsMember({"longest-first", "youngest-first"}))
         ->capture_default_str());
  in(kGroup,
     app.add_option(
            "--sleep-idle-seconds",
            flags.sleep_after,
            "Seconds without a request after which memory is given back; -1 "
            "for never")
         ->check(CLI::Range(int64_t(-1), int64_t(1) << 31))
         ->capture_default_str());
}

void finish_capacity(
    const CapacityFlags& flags, server::CapacityOptions& capacity) {
  if (capacity.slots == 0) {
    throw UsageError(
        "wrong --parallel 0",
        "without a slot nothing can run",
        "give a number from 1 up, or -1 for automatic");
  }
  if (flags.no_batch || !flags.continuous) {
    capacity.slots = 1;
  }
  constexpr int64_t kPrefillChunk = 512;
  int64_t chunk = flags.prefill_chunk;
  int64_t total = least(
      {flags.prefill_total, flags.physical_batch},
      chunk > 0 ? chunk : kPrefillChunk);
  capacity.prefill_chunk = int(total);
  capacity.prompt_chunk = chunk > 0 ? int(std::min(chunk, total)) : 0;
  capacity.kv_bytes = flags.kv_budget == "auto"
                          ? 0
                          : parse_bytes("--kv-cache-budget", flags.kv_budget);
  if (flags.kv_budget != "auto" && capacity.kv_bytes == 0) {
    throw UsageError(
        "wrong --kv-cache-budget 0",
        "without memory for keys and values nothing can run",
        "give a size, or auto");
  }
  capacity.preemption = flags.preemption == "youngest-first"
                            ? PreemptionPolicy::youngest_first
                            : PreemptionPolicy::longest_first;
  capacity.decode_timeout = std::chrono::seconds(flags.decode_timeout);
  capacity.sleep_after = std::chrono::seconds(flags.sleep_after);
}

}  // namespace mlxcel::cli
