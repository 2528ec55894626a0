// A server from its options: loads the model, builds engine, service and routes
// and answers until it is told to stop.
#pragma once

#include "engine/engine.h"
#include "http/options.h"
#include "loading/pipeline.h"
#include "server/routes.h"
#include "server/served_model.h"

#include <cstdint>
#include <filesystem>
#include <string>

namespace mlxcel::server {

struct ChatTemplateOptions {
  std::string text;            // a template itself
  std::filesystem::path file;  // or a file that holds it
  std::string kwargs;          // a JSON object
};

struct CapacityOptions {
  int64_t ctx_size = 0;  // positions, shared by the slots; 0: the model's, each
  int slots = -1;        // sequences that run together; -1: automatic
  int max_queued = 32;
  int64_t kv_bytes = 0;  // of KV cache; 0: automatic
  int prefill_chunk = 512;
  double step_seconds = 0.1;  // aimed at while answers are running
  PrefixCacheOptions prefix_cache{.bytes = int64_t(2) << 30};
  PreemptionPolicy preemption = PreemptionPolicy::longest_first;
  double admission_watermark = 0.01;
};

struct ServerOptions {
  LoadOptions load;
  bool lora_init_without_apply = false;
  std::filesystem::path
      lora_dir;       // from where adapters may be loaded; "": none
  std::string alias;  // "": the folder's name
  bool deterministic = false;
  bool warmup = true;
  ChatTemplateOptions chat_template;
  ReasoningFormat reasoning = ReasoningFormat::deepseek;
  CapacityOptions capacity;
  RequestDefaults defaults;
  RouteSwitches routes;
  http::Options http;
};

// Returns when the server has stopped. Throws what is wrong with the options,
// the model or the adapters before the port answers.
void run_server(ServerOptions options);

}  // namespace mlxcel::server
