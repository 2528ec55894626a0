#include "server/server.h"

#include "adapters/adapter.h"
#include "core/cpu_features.h"
#include "core/error.h"
#include "core/log.h"
#include "http/server.h"
#include "io/checkpoint.h"
#include "io/json.h"
#include "loading/compose.h"
#include "models/family.h"
#include "ops/host_work.h"
#include "server/adapter_loading.h"
#include "server/capacity.h"
#include "server/openai.h"
#include "server/slot_file.h"
#include "text/special_ids.h"

#include <algorithm>
#include <future>
#include <optional>
#include <thread>

namespace mlxcel::server {

namespace fs = std::filesystem;

namespace {

// The text side of the model.
ServedModel open_text(const ServerOptions& options, const fs::path& folder) {
  ServedModel model;
  const ChatTemplateOptions& chat = options.chat_template;
  model.template_kwargs = parse_template_kwargs(chat.kwargs);
  if (chat.thinking && !model.template_kwargs.contains("enable_thinking")) {
    model.template_kwargs["enable_thinking"] = *chat.thinking;
  }
  if (!chat.reasoning_effort.empty() &&
      !model.template_kwargs.contains("reasoning_effort")) {
    model.template_kwargs["reasoning_effort"] = chat.reasoning_effort;
  }
  model.tokenizer = Tokenizer::load(folder);
  if (!chat.text.empty() || !chat.file.empty()) {
    model.chat_template = ChatTemplate::from_source(
        chat.text.empty() ? read_text_file(chat.file) : chat.text, folder);
  } else {
    model.chat_template = ChatTemplate::load(folder);
  }
  model.token_texts = std::make_unique<TokenTexts>(*model.tokenizer);
  return model;
}

std::string alias_of(const ServerOptions& options, const fs::path& folder) {
  if (!options.alias.empty()) {
    return options.alias;
  }
  fs::path full = fs::weakly_canonical(folder);
  return full.has_filename() ? full.filename().string()
                             : full.parent_path().filename().string();
}

EngineOptions engine_options_of(
    const ServerOptions& options,
    const Capacity& capacity,
    const LoadedModel& model) {
  const CapacityOptions& given = options.capacity;
  EngineOptions out;
  out.prefill_chunk = given.prefill_chunk;
  out.prompt_chunk = given.prompt_chunk;
  out.max_prefills = given.max_prefills;
  out.max_sequences = capacity.slots;
  out.max_blocks = capacity.max_blocks;
  out.max_positions = capacity.context;
  out.context_shift = given.context_shift;
  out.reuse_generated = !options.deterministic;
  out.prefix_cache = given.prefix_cache;
  if (given.prefix_positions > 0) {
    // Compared in blocks: so many positions may have more bytes than an
    // int64_t.
    int64_t blocks = blocks_for(given.prefix_positions);
    int64_t block_bytes = model.model->kv_cache_spec().bytes_per_block();
    if (block_bytes > 0 && blocks <= out.prefix_cache.bytes / block_bytes) {
      out.prefix_cache.bytes = blocks * block_bytes;
    }
  }
  if (model.model->context_traits().whole_sequence) {
    out.prefix_cache.bytes = 0;  // nothing goes on from what was computed
  }
  out.preemption = given.preemption;
  out.admission_watermark = given.admission_watermark;
  out.step_seconds = given.step_seconds;
  return out;
}

void describe(const EngineOptions& engine, const LoadedModel& model) {
  int64_t block = model.model->kv_cache_spec().bytes_per_block();
  log_info(
      cat("KV cache: at most ",
          engine.max_blocks,
          " blocks of ",
          kKvBlockSize,
          " positions, ",
          block,
          " bytes each; prompt cache: at most ",
          engine.prefix_cache.bytes,
          " bytes; a step reads at most ",
          engine.prefill_chunk,
          " prompt tokens; weights: ",
          model.weight_bytes,
          " bytes; activations: ",
          model.activation_dtype));
}

// Serves /metrics on a port of its own until it is destroyed, so that a scraper
// gets through while the main port is busy, and while it drains.
class MetricsServer {
 public:
  MetricsServer(
      http::Options options, int port, const http::Registry& metrics) {
    options.port = uint16_t(port);
    if (options.host.ends_with(".sock")) {
      options.host = "127.0.0.1";
    }
    options.prefix.clear();
    options.threads = 1;
    options.handle_signals = false;
    http::Route route;
    route.method = "GET";
    route.path = "/metrics";
    route.handler = http::immediate(
        [&metrics](const http::Request&, http::Response& response) {
          response.send(
              200, std::string(http::Registry::kContentType), metrics.text());
        });
    router_.add(std::move(route));
    server_.emplace(std::move(options), router_);
    server_->bind();
  }
  void start() {
    server_->listen();
    log_info(cat("Metrics at ", server_->url(), "/metrics"));
    thread_ = std::thread([this] { server_->run(); });
  }
  ~MetricsServer() {
    if (thread_.joinable()) {
      server_->stop();
      thread_.join();
    }
  }

 private:
  http::Router router_;
  std::optional<http::Server> server_;
  std::thread thread_;
};

// The first step reads in what later ones use.
void warm_up(Engine& engine) {
  int64_t id = engine.add({.prompt = {0}, .max_tokens = 2, .use_cache = false});
  while (!engine.idle()) {
    engine.step();
  }
  engine.release(id);
}

void check_folder(const char* option, const fs::path& folder, const char* fix) {
  std::error_code error;
  fs::file_status status = fs::status(folder, error);
  if (fs::is_directory(status)) {
    return;
  }
  std::string why = status.type() == fs::file_type::not_found
                        ? "nothing has that name"
                    : fs::exists(status) ? "it is a file"
                                         : error.message();
  throw UsageError(
      cat(option, ' ', folder.string(), " is no folder"), why, fix);
}

void check_slot_folder(const ServerOptions& options) {
  if (options.slot_folder.empty()) {
    return;
  }
  check_folder(
      "--slot-save-path",
      options.slot_folder,
      "create it, or give one that is there");
  if (options.capacity.prefix_cache.bytes == 0) {
    throw UsageError(
        "--slot-save-path needs the prompt cache",
        "what a slot computed is kept there, and it is off",
        "leave out one of the options");
  }
}

// What the bits of the results depend on: on the CPU the kernels, not how many
// threads share the work.
std::string arithmetic_of(const Backend& backend) {
  bool host = dynamic_cast<const HostWork*>(&backend) != nullptr;
  return host ? cat("cpu ", name_of(choose_isa())) : backend.description();
}

void allow_saving_slots(
    App& app,
    const ServerOptions& options,
    const LoadedModel& loaded,
    const Engine& engine) {
  if (options.slot_folder.empty()) {
    return;
  }
  const KvCacheSpec spec = loaded.model->kv_cache_spec();
  if (loaded.model->context_traits().whole_sequence) {
    throw UsageError(
        "--slot-save-path cannot be used with this model",
        "each token takes a pass over its whole sequence, so nothing that a "
        "slot computed is of use later",
        "leave it out");
  }
  if (!engine.states().can_save()) {
    throw UsageError(
        "--slot-save-path cannot be used with this backend",
        "the recurrent state of this model stays on its device",
        "leave it out");
  }
  app.slot_folder = options.slot_folder;
  app.slot_fingerprint = slot_fingerprint(
      loaded.digest,
      cat(MLXCEL_VERSION,
          ' ',
          arithmetic_of(*loaded.backend),
          options.load.prefill_int8 ? " int8" : ""),
      spec);
  app.slot_sizes = {
      size_t(engine.blocks().block_bytes()), engine.states().saved_bytes()};
}

}  // namespace

void run_server(ServerOptions options) {
  fs::path folder = checkpoint_folder(options.load.model);
  parse_template_kwargs(options.chat_template.kwargs);
  if (!options.lora_dir.empty()) {
    check_folder(
        "--lora-dir",
        options.lora_dir,
        "give the folder that holds the adapters' folders");
  }
  check_slot_folder(options);
  options.load.digest = !options.slot_folder.empty();
  for (AdapterRequest& adapter : options.load.adapters) {
    adapter.read = std::make_shared<Adapter>(read_adapter(adapter.folder));
  }
  check_task_names(options.load.adapters);

  http::Router router;
  http::Registry metrics;
  http::Server server(options.http, router, &metrics);
  server.bind();
  std::optional<MetricsServer> metrics_server;
  if (options.metrics_port >= 0) {
    metrics_server.emplace(options.http, options.metrics_port, metrics);
  }

  // The text side needs about as long as a small model's weights.
  auto text = std::async(
      std::launch::async, [&] { return open_text(options, folder); });
  auto loaded = std::make_shared<LoadedModel>(load_model(options.load));
  ServedModel model = text.get();
  Capacity capacity = capacity_of(
      options.capacity, loaded->model->kv_cache_spec(), loaded->max_positions);

  model.alias = alias_of(options, folder);
  model.folder = loaded->folder;
  model.created = unix_time();
  model.family = loaded->family->name;
  model.vocab_size = loaded->model->vocab_size();
  model.context = capacity.context;
  model.model_context = loaded->max_positions;
  model.slots = capacity.slots;
  model.weight_bytes = loaded->weight_bytes;
  model.surgery = recipe_path(options.load).string();
  model.eos = eos_ids(loaded->config.json(), folder, model.tokenizer.get());
  model.grammars =
      std::make_unique<GrammarCompiler>(*model.tokenizer, model.eos);
  model.answers = options.answers;
  model.context_shift = options.capacity.context_shift;
  if (options.defaults.grammar) {
    model.grammars->compile(*options.defaults.grammar);  // or say why not
  }
  model.defaults = options.defaults;
  Adapters adapters(
      loaded->adapters, model.alias, options.lora_init_without_apply);

  EngineOptions engine_options = engine_options_of(options, capacity, *loaded);
  Engine engine(*loaded->model, *loaded->backend, engine_options);
  if (options.verbose) {
    describe(engine_options, *loaded);
  }
  if (options.warmup) {
    warm_up(engine);
  }

  Service service(
      engine,
      *model.tokenizer,
      model.eos,
      {.max_running = capacity.slots,
       .max_queued = options.capacity.max_queued,
       .context = capacity.context,
       .context_shift = engine_options.context_shift,
       .use_cache = engine_options.prefix_cache.bytes > 0,
       .decode_timeout = options.capacity.decode_timeout,
       .sleep_after = options.capacity.sleep_after},
      metrics);
  http::add_process_metrics(metrics);
  std::optional<AdapterLoading> loading;
  App app{model, adapters, service, metrics, options.routes, {}, {}};
  allow_saving_slots(app, options, *loaded, engine);
  if (!options.lora_dir.empty()) {
    loading.emplace(options.load, options.lora_dir, loaded, adapters, service);
    loaded.reset();  // the loading holds the one in use
    app.load_adapter = [&](const std::string& name, const std::string& path) {
      loading->load(name, path);
    };
    app.unload_adapter = [&](const std::string& name) {
      loading->unload(name);
    };
  }
  add_routes(router, app);
  server.listen();
  log_info(
      cat("Serving ",
          model.alias,
          " on ",
          server.url(),
          ": ",
          capacity.slots,
          " slots, ",
          capacity.context,
          " positions each"));
  if (metrics_server) {
    metrics_server->start();
  }
  server.run();
  service.stop();
}

}  // namespace mlxcel::server
