#include "cli/serve_options.h"

#include "core/error.h"

#include <CLI/CLI.hpp>

#include <charconv>
#include <cmath>

namespace mlxcel::cli {

namespace {

// "2GiB", "500M", "1048576"
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

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> out;
  size_t begin = 0;
  while (begin < list.size()) {
    size_t end = std::min(list.find(',', begin), list.size());
    if (end > begin) {
      out.push_back(list.substr(begin, end - begin));
    }
    begin = end + 1;
  }
  return out;
}

CLI::Option* in(const char* group, CLI::Option* option) {
  return option->group(group);
}

void declare_network(
    CLI::App& app, ServeFlags& flags, server::ServerOptions& options) {
  constexpr const char* kGroup = "Network";
  http::Options& net = options.http;
  in(kGroup,
     app.add_option(
            "--host", net.host, "Address; one ending in .sock is a unix socket")
         ->envname("LLAMA_ARG_HOST")
         ->capture_default_str());
  in(kGroup,
     app.add_option("--port", net.port, "Port; 0 for one that is free")
         ->envname("LLAMA_ARG_PORT")
         ->capture_default_str());
  in(kGroup,
     app.add_option("-a,--alias", options.alias, "The model's name on the API")
         ->envname("LLAMA_ARG_ALIAS"));
  in(kGroup,
     app.add_option(
            "--api-key", flags.api_keys, "A key that clients need; repeatable")
         ->envname("LLAMA_API_KEY")
         ->type_size(1)
         ->allow_extra_args(false)
         ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll));
  in(kGroup,
     app.add_option("--api-key-file", flags.api_key_file, "One key a line")
         ->type_name("FILE"));
  in(kGroup,
     app.add_option("--api-prefix", net.prefix, "Put in front of every route"));
  in(kGroup,
     app.add_option(
         "--allowed-origins",
         flags.origins,
         "Web pages that may call, comma separated, * for all; without it "
         "those of this machine"));
  in(kGroup,
     app.add_option(
            "--cors-headers",
            net.cors.headers,
            "Headers that those may send; * for what they ask for")
         ->capture_default_str());
  in(kGroup,
     app.add_flag(
         "--cors-credentials",
         net.cors.credentials,
         "Let browsers send cookies and stored passwords with them"));
  in(kGroup,
     app.add_option(
            "--cors-max-age",
            net.cors.max_age,
            "Seconds for which a browser keeps these permissions")
         ->check(CLI::Range(0, 604800))
         ->capture_default_str());
  in(kGroup,
     app.add_option(
            "--ssl-cert-file", net.tls.cert_file, "Certificate chain, PEM")
         ->type_name("FILE"));
  in(kGroup,
     app.add_option("--ssl-key-file", net.tls.key_file, "Its key, PEM")
         ->type_name("FILE"));
  in(kGroup,
     app.add_option(
            "--timeout", flags.timeout, "Seconds that a request may take")
         ->check(CLI::Range(int64_t(1), int64_t(1) << 31))
         ->capture_default_str());
  in(kGroup,
     app.add_option("--threads-http", net.threads, "Threads for connections")
         ->check(CLI::Range(1, 256))
         ->capture_default_str());
  in(kGroup,
     app.add_flag(
         "--reuse-port",
         net.reuse_port,
         "Let other processes listen on the port"));
  in(kGroup,
     app.add_option(
            "--sse-ping-interval",
            flags.ping_interval,
            "Seconds between pings of a silent stream; 0 for none")
         ->check(CLI::Range(int64_t(0), int64_t(86400)))
         ->capture_default_str());
}

void declare_capacity(
    CLI::App& app, ServeFlags& flags, server::CapacityOptions& capacity) {
  constexpr const char* kGroup = "Capacity";
  in(kGroup,
     app.add_option(
            "-c,--ctx-size",
            capacity.ctx_size,
            "Positions of context, shared by the slots; 0 for the model's own "
            "in each")
         ->envname("LLAMA_ARG_CTX_SIZE")
         ->check(CLI::Range(int64_t(0), int64_t(1) << 40))
         ->capture_default_str());
  in(kGroup,
     app.add_option(
            "--parallel,--max-batch-size",
            capacity.slots,
            "Sequences that run together; -1 for automatic")
         ->envname("LLAMA_ARG_N_PARALLEL")
         ->check(CLI::Range(-1, 4096))
         ->capture_default_str());
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
  in(kGroup,
     app.add_option(
            "-b,--batch-size,--prefill-chunk-size",
            capacity.prefill_chunk,
            "Prompt tokens of a step at most")
         ->envname("LLAMA_ARG_BATCH")
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
  in(kGroup,
     app.add_option(
            "--kv-cache-budget",
            flags.kv_budget,
            "Memory for keys and values, such as 4GiB")
         ->capture_default_str());
  in(kGroup,
     app.add_option(
            "--kv-admission-watermark",
            capacity.admission_watermark,
            "Share of it that newcomers leave free")
         ->check(CLI::Range(0.0, 1.0))
         ->capture_default_str());
  in(kGroup,
     app.add_option(
            "--preemption-policy",
            flags.preemption,
            "Which sequence gives way when it is full; nothing is lost")
         ->check(CLI::IsMember({"longest-first", "youngest-first"}))
         ->capture_default_str());
}

void declare_prompt_cache(
    CLI::App& app, ServeFlags& flags, server::ServerOptions& options) {
  constexpr const char* kGroup = "Prompt cache";
  PrefixCacheOptions& cache = options.capacity.prefix_cache;
  in(kGroup,
     app.add_flag(
         "--no-prompt-cache",
         flags.no_prompt_cache,
         "Compute every prompt whole"));
  in(kGroup,
     app.add_flag(
         "--prompt-cache-enabled{true},--cache-prompt{true},"
         "--no-cache-prompt{false}",
         options.defaults.cache_prompt,
         "Whether requests that do not say so use the cache"));
  in(kGroup,
     app.add_option(
            "--prompt-cache-capacity-bytes",
            flags.prompt_cache_bytes,
            "What it may hold")
         ->capture_default_str());
  in(kGroup,
     app.add_option(
            "--snapshot-cache-capacity-bytes",
            flags.snapshot_bytes,
            "What its recurrent states may hold")
         ->capture_default_str());
  in(kGroup,
     app.add_option(
         "--cache-ram", flags.cache_ram_mib, "The same in MiB; 0 for none"));
  in(kGroup,
     app.add_option(
            "--prompt-cache-max-entries",
            cache.max_entries,
            "Ends of sequences that it keeps")
         ->check(CLI::Range(1, 1 << 30))
         ->capture_default_str());
  in(kGroup,
     app.add_option(
            "--prompt-cache-ttl",
            flags.prompt_cache_ttl,
            "Seconds that it keeps what nobody asks for")
         ->check(CLI::Range(int64_t(1), int64_t(1) << 31))
         ->capture_default_str());
  in(kGroup,
     app.add_option(
            "--prompt-cache-min-prefix",
            cache.min_positions,
            "Shorter common beginnings are computed again")
         ->check(CLI::Range(int64_t(1), int64_t(1) << 31))
         ->capture_default_str());
}

void declare_templates(CLI::App& app, server::ServerOptions& options) {
  constexpr const char* kGroup = "Text";
  server::ChatTemplateOptions& chat = options.chat_template;
  CLI::Option* text =
      in(kGroup,
         app.add_option(
             "--chat-template",
             chat.text,
             "A Jinja template instead of the checkpoint's own"));
  in(kGroup,
     app.add_option("--chat-template-file", chat.file, "The same from a file")
         ->type_name("FILE")
         ->excludes(text));
  in(kGroup,
     app.add_option(
            "--chat-template-kwargs",
            chat.kwargs,
            "Variables for the chat template, a JSON object")
         ->type_name("JSON"));
  in(kGroup,
     app.add_option_function<std::string>(
            "--reasoning-format",
            [&options](const std::string& name) {
              options.reasoning = reasoning_format(name);
            },
            "Where a model's thoughts go: none (they stay in the answer), "
            "deepseek, deepseek-legacy (both) or auto")
         ->default_str("auto"));
}

}  // namespace

void declare_serve_options(
    CLI::App& app, ServeFlags& flags, server::ServerOptions& options) {
  declare_network(app, flags, options);
  declare_capacity(app, flags, options.capacity);
  declare_prompt_cache(app, flags, options);
  declare_templates(app, options);
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
     app.add_flag(
         "--slots{true},--no-slots{false}",
         options.routes.slots,
         "Whether to serve /slots"));
  in("Routes",
     app.add_flag("--props", options.routes.props_post, "Allow POST /props"));
  in("Log",
     app.add_flag(
         "--log-json", flags.log_json, "Write the access log as JSON lines"));
  in("Log", app.add_flag("--log-disable", flags.log_disable, "No access log"));
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
  http::Options& net = options.http;
  for (const std::string& key : flags.api_keys) {
    for (const std::string& part : split(key)) {
      net.api_keys.push_back(part);
    }
  }
  if (net.api_keys.empty() && !flags.api_keys.empty()) {
    throw UsageError(
        "an --api-key is empty",
        "the server would be open to everyone",
        "give the key, or leave the option out");
  }
  while (net.prefix.ends_with('/')) {
    net.prefix.pop_back();
  }
  if (!net.prefix.empty() && !net.prefix.starts_with('/')) {
    net.prefix.insert(0, "/");
  }
  if (!flags.api_key_file.empty()) {
    for (std::string& key : http::read_key_file(flags.api_key_file)) {
      net.api_keys.push_back(std::move(key));
    }
  }
  if (net.tls.cert_file.empty() != net.tls.key_file.empty()) {
    throw UsageError(
        "--ssl-cert-file and --ssl-key-file belong together",
        "only one of them is given",
        "give both, or neither");
  }
  net.cors.origins = split(flags.origins);
  net.limits.request_time = std::chrono::seconds(flags.timeout);
  net.ping_interval = std::chrono::seconds(flags.ping_interval);
  net.access_log = flags.log_disable ? http::LogFormat::off
                   : flags.log_json  ? http::LogFormat::json
                                     : http::LogFormat::text;
  server::CapacityOptions& capacity = options.capacity;
  if (capacity.slots == 0) {
    throw UsageError(
        "wrong --parallel 0",
        "without a slot nothing can run",
        "give a number from 1 up, or -1 for automatic");
  }
  if (flags.no_batch) {
    capacity.slots = 1;
  }
  capacity.kv_bytes = flags.kv_budget == "auto"
                          ? 0
                          : parse_bytes("--kv-cache-budget", flags.kv_budget);
  if (flags.kv_budget != "auto" && capacity.kv_bytes == 0) {
    throw UsageError(
        "wrong --kv-cache-budget 0",
        "without memory for keys and values nothing can run",
        "give a size, or auto");
  }
  capacity.prefix_cache.bytes =
      parse_bytes("--prompt-cache-capacity-bytes", flags.prompt_cache_bytes);
  capacity.prefix_cache.state_bytes =
      parse_bytes("--snapshot-cache-capacity-bytes", flags.snapshot_bytes);
  if (flags.cache_ram_mib >= 0) {
    capacity.prefix_cache.bytes = flags.cache_ram_mib << 20;
  }
  if (flags.no_prompt_cache) {
    capacity.prefix_cache.bytes = 0;
  }
  capacity.prefix_cache.lifetime = std::chrono::seconds(flags.prompt_cache_ttl);
  capacity.preemption = flags.preemption == "youngest-first"
                            ? PreemptionPolicy::youngest_first
                            : PreemptionPolicy::longest_first;
}

std::vector<UnbuiltOption> serve_unbuilt_options() {
  auto draft = "speculative decoding with a draft model";
  auto router = "router mode";
  auto hub = "downloads from a hub";
  auto side = "embedding and reranking models";
  auto media = "image, audio and video input";
  auto distributed = "running over several machines";
  auto gguf = "GGUF files; mlxcel import-gguf turns them into folders";
  auto device = "layers on other devices";
  auto slots = "saved slots";
  return {
      {"--draft-max,--draft", draft, {"16"}},
      {"--draft-min", draft, {"0"}},
      {"--spec-type", draft, {"none"}},
      {"--models-dir", router, {}},
      {"--models-max", router, {"4"}},
      {"--models-autoload", router, {}, {}, true},
      {"--models-preset", router, {}},
      {"--tags", router, {}},
      {"--hf-repo,--hf", hub, {}},
      {"--hf-token", hub, {}},
      {"--revision", hub, {}},
      {"--reranker-model", side, {}},
      {"--embedding-model", side, {}},
      {"--embeddings,--embedding", side, {}, {}, true},
      {"--reranking,--rerank", side, {}, {}, true},
      {"--pooling", side, {}},
      {"--media-path", media, {}},
      {"--image-min-tokens", media, {}},
      {"--image-max-tokens", media, {}},
      {"--node-role", distributed, {}},
      {"--serving-bind", distributed, {}},
      {"--prefill-peers", distributed, {}},
      {"--decode-peers", distributed, {}},
      {"--pp-auto", distributed, {}, {}, true},
      {"--hf-file", gguf, {}},
      {"--model-url,--mu", gguf, {}},
      {"--docker-repo", gguf, {}},
      {"--mmproj", media, {}},
      {"--control-vector", "control vectors", {}},
      {"--control-vector-scaled", "control vectors", {}},
      {"--context-shift", "context shift", {}, {}, true},
      {"--keep", "context shift", {"0"}},
      {"--max-kv-size", "a rotating KV cache", {"0"}},
      {"--slot-save-path", slots, {}},
      {"--cache-reuse", "reuse of shifted chunks", {"0"}},
      {"--enable-vlm-prefix-cache", media, {"false"}},
      {"--decode-storage-backend",
       "other layouts of the KV cache",
       {"auto", "paged"}},
      {"--metrics-port", "a port of its own for metrics", {}},
      {"--sleep-idle-seconds", "sleeping when idle", {"-1"}},
      {"--rope-scaling", "other rotations than the config's", {}},
      {"--rope-scale", "other rotations than the config's", {"1"}},
      {"--rope-freq-base", "other rotations than the config's", {"0"}},
      {"--rope-freq-scale", "other rotations than the config's", {"1"}},
      {"--n-gpu-layers,--gpu-layers", device, {"0", "auto", "all"}},
      {"--split-mode", device, {"none"}},
      {"--tensor-split", device, {}},
      {"--main-gpu", device, {"0"}},
      {"--flash-attn", "a choice of attention kernels", {"auto", "on"}},
      {"--numa", "placement by NUMA node", {}},
      {"--threads-batch", "a second number of threads", {"-1"}},
      {"--ubatch-size", "a second batch size", {"512"}},
      {"--tools", "tools of its own", {}},
  };
}

}  // namespace mlxcel::cli
