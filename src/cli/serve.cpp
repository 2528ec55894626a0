// `mlxcel serve`, which is `mlxcel-server` as well.
#include "cli/command.h"
#include "cli/console.h"
#include "cli/grammar_options.h"
#include "cli/memory_check.h"
#include "cli/model_options.h"
#include "cli/model_store.h"
#include "cli/sampling_options.h"
#include "cli/serve_options.h"
#include "cli/unbuilt_options.h"
#include "server/server.h"

#include <CLI/CLI.hpp>

#include <memory>

namespace mlxcel::cli {

namespace {

struct ServeOptions {
  ModelOptions model;
  SamplingOptions sampling;
  ServeFlags flags;
  server::ServerOptions server;
  GrammarOptions grammar;
  UnbuiltOptions unbuilt;
};

int run_serve(const ServeOptions& given) {
  refuse_unbuilt(given.unbuilt);
  refuse_unbuilt_variables(Program::server);
  refuse_unbuilt_serve_variables(given.unbuilt);
  check_sampling_options(given.sampling);
  server::ServerOptions options = given.server;
  finish_serve_options(given.flags, options);
  // On servers --adapter and --lora are the same: live unless fused.
  ModelOptions model = given.model;
  for (AdapterRequest& adapter : model.adapters) {
    adapter.fuse = false;
  }
  if (given.flags.estimate_memory) {
    print_server_memory_estimate(model, options.capacity);
    return kOk;
  }
  start_log(given.flags.log);
  RopeOverride rope = options.load.rope;
  options.load = load_options(model);
  options.load.rope = rope;
  options.deterministic = given.model.deterministic;
  options.defaults.sampling = given.sampling.params;
  options.defaults.max_tokens = given.sampling.max_tokens;
  options.defaults.grammar = grammar_source(given.grammar);
  options.defaults.dry_breakers = given.sampling.dry_breakers;
  // -1 arrives as the greatest number.
  bool seeded = given.sampling.seed && *given.sampling.seed != ~uint64_t(0);
  options.defaults.random_seed = !seeded;
  options.defaults.sampling.seed = seeded ? *given.sampling.seed : 0;
  if (!given.flags.no_memory_check) {
    check_memory(model, given.sampling.max_tokens);
  }
  server::run_server(std::move(options));
  return kOk;
}

}  // namespace

Action declare_serve(CLI::App& app) {
  auto options = std::make_shared<ServeOptions>();
  // llama-server's defaults.
  SamplingParams& p = options->sampling.params;
  p.temperature = 0.8f;
  p.top_k = 40;
  p.top_p = 0.95f;
  p.min_p = 0.05f;
  p.dry_last_n = 64;
  declare_model_options(app, options->model);
  app.get_option("--adapter")->description("The same as --lora");
  declare_serve_options(app, options->flags, options->server);
  declare_sampling_options(app, options->sampling);
  declare_grammar_options(app, options->grammar);
  declare_serve_environment(app);
  describe_short_names(app);
  options->unbuilt = declare_unbuilt_options(app, serve_unbuilt_options());
  return [options] { return run_serve(*options); };
}

}  // namespace mlxcel::cli
