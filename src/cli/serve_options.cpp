#include "cli/serve_options.h"

#include "cli/command.h"
#include "core/error.h"

#include <CLI/CLI.hpp>

#include <charconv>
#include <string_view>
#include <utility>

namespace mlxcel::cli {

namespace {

// Names as llama-server has them, where it has one. An option on the command
// line goes first.
struct EnvironmentName {
  const char* option;
  const char* name;
};
constexpr EnvironmentName kEnvironment[] = {
    {"--model", "LLAMA_ARG_MODEL"},
    {"--threads", "LLAMA_ARG_THREADS"},
    {"--host", "LLAMA_ARG_HOST"},
    {"--port", "LLAMA_ARG_PORT"},
    {"--alias", "LLAMA_ARG_ALIAS"},
    {"--api-key", "LLAMA_API_KEY"},
    {"--api-prefix", "LLAMA_ARG_API_PREFIX"},
    {"--ssl-key-file", "LLAMA_ARG_SSL_KEY_FILE"},
    {"--ssl-cert-file", "LLAMA_ARG_SSL_CERT_FILE"},
    {"--timeout", "LLAMA_ARG_TIMEOUT"},
    {"--threads-http", "LLAMA_ARG_THREADS_HTTP"},
    {"--reuse-port", "LLAMA_ARG_REUSE_PORT"},
    {"--ctx-size", "LLAMA_ARG_CTX_SIZE"},
    {"--context-shift", "LLAMA_ARG_CONTEXT_SHIFT"},
    {"--parallel", "LLAMA_ARG_N_PARALLEL"},
    {"--cont-batching", "LLAMA_ARG_CONT_BATCHING"},
    {"--batch-size", "LLAMA_ARG_BATCH"},
    {"--ubatch-size", "LLAMA_ARG_UBATCH"},
    {"--prefill-chunk-size", "MLXCEL_PREFILL_CHUNK"},
    {"--predict", "LLAMA_ARG_N_PREDICT"},
    {"--cache-prompt", "LLAMA_ARG_CACHE_PROMPT"},
    {"--cache-ram", "LLAMA_ARG_CACHE_RAM"},
    {"--chat-template", "LLAMA_ARG_CHAT_TEMPLATE"},
    {"--chat-template-file", "LLAMA_ARG_CHAT_TEMPLATE_FILE"},
    {"--chat-template-kwargs", "LLAMA_CHAT_TEMPLATE_KWARGS"},
    {"--skip-chat-parsing", "LLAMA_ARG_SKIP_CHAT_PARSING"},
    {"--prefill-assistant", "LLAMA_ARG_PREFILL_ASSISTANT"},
    {"--reasoning", "LLAMA_ARG_REASONING"},
    {"--reasoning-format", "LLAMA_ARG_THINK"},
    {"--reasoning-budget", "LLAMA_ARG_THINK_BUDGET"},
    {"--metrics", "LLAMA_ARG_ENDPOINT_METRICS"},
    {"--props", "LLAMA_ARG_ENDPOINT_PROPS"},
    {"--slots", "LLAMA_ARG_ENDPOINT_SLOTS"},
    {"--rope-scaling", "LLAMA_ARG_ROPE_SCALING_TYPE"},
    {"--rope-scale", "LLAMA_ARG_ROPE_SCALE"},
    {"--rope-freq-base", "LLAMA_ARG_ROPE_FREQ_BASE"},
    {"--rope-freq-scale", "LLAMA_ARG_ROPE_FREQ_SCALE"},
    {"--mlock", "LLAMA_ARG_MLOCK"},
    {"--log-file", "LLAMA_LOG_FILE"},
    {"--log-colors", "LLAMA_LOG_COLORS"},
    {"--log-verbosity", "LLAMA_LOG_VERBOSITY"},
    {"--log-prefix", "LLAMA_LOG_PREFIX"},
    {"--log-timestamps", "LLAMA_LOG_TIMESTAMPS"},
};

// llama-server's short names of more than one letter.
constexpr std::pair<std::string_view, std::string_view> kShort[] = {
    {"-np", "--parallel"},         {"-ub", "--ubatch-size"},
    {"-cb", "--cont-batching"},    {"-nocb", "--no-cont-batching"},
    {"-to", "--timeout"},          {"-lv", "--log-verbosity"},
    {"-jf", "--json-schema-file"}, {"-rea", "--reasoning"},
    {"-cram", "--cache-ram"},      {"-ctk", "--cache-type-k"},
    {"-ctv", "--cache-type-v"},    {"-md", "--draft-model"},
    {"-hf", "--hf-repo"},          {"-hfr", "--hf-repo"},
    {"-hff", "--hf-file"},         {"-hft", "--hf-token"},
    {"-mu", "--model-url"},        {"-mm", "--mmproj"},
    {"-dr", "--docker-repo"},      {"-ngl", "--n-gpu-layers"},
    {"-sm", "--split-mode"},       {"-ts", "--tensor-split"},
    {"-mg", "--main-gpu"},         {"-dev", "--device"},
    {"-ot", "--override-tensor"},  {"-cmoe", "--cpu-moe"},
    {"-ncmoe", "--n-cpu-moe"},     {"-nkvo", "--no-kv-offload"},
    {"-fa", "--flash-attn"},       {"-tb", "--threads-batch"},
    {"-C", "--cpu-mask"},          {"-Cr", "--cpu-range"},
};

}  // namespace

void spell_out_serve_options(std::vector<std::string>& words) {
  for (size_t i = 0; i < words.size(); ++i) {
    std::string& word = words[i];
    bool last = i + 1 == words.size() || words[i + 1].starts_with("-");
    if (word == "--log-colors" && last) {
      word += "=on";
    }
    for (const auto& [name, option] : kShort) {
      if (word == name) {
        word = option;
        break;
      }
    }
  }
}

CLI::Option* in(const char* group, CLI::Option* option) {
  return option->group(group);
}

int64_t parse_bytes(const std::string& flag, const std::string& text) {
  double amount = 0;
  const char* end = text.data() + text.size();
  auto [rest, error] = std::from_chars(text.data(), end, amount);
  std::string unit(rest, end);
  double factor = unit.empty() || unit == "B"    ? 1
                  : unit == "K" || unit == "KiB" ? 1024.0
                  : unit == "M" || unit == "MiB" ? 1024.0 * 1024
                  : unit == "G" || unit == "GiB" ? 1024.0 * 1024 * 1024
                                                 : 0;
  double bytes = amount * factor;
  if (error != std::errc() || factor == 0 || !(bytes >= 0) || bytes > 1e18) {
    throw UsageError(
        cat("wrong ", flag, " ", text),
        "it is no size in bytes",
        cat("write ", flag, " 2GiB, 500MiB or a number of bytes"));
  }
  return int64_t(bytes);
}

CLI::Option* add_switch(
    CLI::App& app,
    const std::string& names,
    bool& value,
    const std::string& help) {
  return app
      .add_option_function<std::string>(
          names,
          [&value](const std::string& text) {
            value = text == "true" || text == "on" || text == "1";
          },
          help)
      ->expected(0, 1)
      ->default_str("true")
      ->check(CLI::IsMember({"true", "false", "on", "off", "1", "0"}))
      ->type_name("BOOL");
}

void describe_short_names(CLI::App& app) {
  std::string text = "llama-server's short names:\n";
  for (const auto& [name, option] : kShort) {
    if (app.get_option_no_throw(std::string(option)) != nullptr) {
      text += fmt::format("  {:<32}{}\n", name, option);
    }
  }
  app.footer(text);
}

void declare_serve_environment(CLI::App& app) {
  for (const EnvironmentName& entry : kEnvironment) {
    app.get_option(entry.option)->envname(entry.name);
  }
}

void declare_serve_options(
    CLI::App& app, ServeFlags& flags, server::ServerOptions& options) {
  declare_network_options(app, flags.network, options);
  declare_capacity_options(app, flags.capacity, options);
  declare_cache_options(app, flags.cache, options);
  declare_text_options(app, flags.text, flags.rope, options);
  declare_log_options(app, flags.log);
  in("Adapters",
     app.add_flag(
         "--lora-init-without-apply",
         options.lora_init_without_apply,
         "Load the adapters at scale 0"));
  in("Adapters",
     app.add_option(
            "--lora-dir",
            options.lora_dir,
            "Folder from which clients may load adapters")
         ->type_name("DIR"));
  in("Routes",
     app.add_flag("--metrics", options.routes.metrics, "Serve /metrics"));
  in("Routes",
     app.add_option(
            "--metrics-port",
            options.metrics_port,
            "Serve /metrics on this port of its own; 0 for one that is free")
         ->check(CLI::Range(0, 65535)));
  in("Routes",
     app.add_flag(
         "--slots{true},--no-slots{false}",
         options.routes.slots,
         "Whether to serve /slots"));
  in("Routes",
     app.add_option(
            "--slot-save-path",
            options.slot_folder,
            "Folder in which POST /slots/{id} saves what a slot computed")
         ->type_name("DIR"));
  in("Routes",
     app.add_flag(
         "--webui{true},--no-webui{false}",
         options.routes.playground,
         "Whether browsers get the playground at /"));
  in("Routes",
     app.add_flag(
         "--props",
         options.routes.props_post,
         "Answer POST /props, which changes nothing"));
  app.add_flag(
      "--warmup{true},--no-warmup{false}",
      options.warmup,
      "Whether to run a step before the first request");
  app.add_flag(
      "--estimate-memory",
      flags.estimate_memory,
      "Print the memory a request would need, and stop");
  app.add_flag(
      "--no-memory-check,--force",
      flags.no_memory_check,
      "Start even when the estimate exceeds the free memory");
}

void finish_serve_options(
    const ServeFlags& flags, server::ServerOptions& options) {
  finish_network(flags.network, options.http);
  finish_capacity(flags.capacity, options.capacity);
  finish_cache(flags.cache, options.capacity);
  finish_text(flags.text, options);
  options.load.rope = rope_override(flags.rope);
  options.http.access_log = flags.log.disabled ? http::LogFormat::off
                            : flags.log.json   ? http::LogFormat::json
                                               : http::LogFormat::text;
  options.verbose = flags.log.verbose || flags.log.verbosity >= 4;
}

}  // namespace mlxcel::cli
