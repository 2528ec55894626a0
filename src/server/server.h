// A server from its options: loads the model, builds engine, service and routes
// and answers until it is told to stop.
#pragma once

#include "engine/engine.h"
#include "http/options.h"
#include "loading/pipeline.h"
#include "server/routes.h"
#include "server/served_model.h"

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace mlxcel::server {

struct ChatTemplateOptions {
  std::string text;              // a template itself
  std::filesystem::path file;    // or a file that holds it
  std::string kwargs;            // a JSON object
  std::optional<bool> thinking;  // sets enable_thinking
  std::string reasoning_effort;  // sets reasoning_effort
};

struct CapacityOptions {
  int64_t ctx_size = 0;  // positions, shared by the slots; 0: the model's, each
  int64_t max_positions = 0;  // of one sequence; 0: no further limit
  bool context_shift = false;
  int slots = -1;  // sequences that run together; -1: automatic
  int max_queued = 32;
  int64_t kv_bytes = 0;  // of KV cache; 0: automatic
  int prefill_chunk = 512;
  int prompt_chunk = 0;       // of these, one prompt's; 0: all
  int max_prefills = 0;       // prompts read in one step; 0: no limit
  int grant_interval = 16;    // steps until prompts get a share; each gives one
  double step_seconds = 0.1;  // aimed at while answers are running
  std::chrono::seconds decode_timeout{0};  // of an answer; 0: none
  std::chrono::seconds sleep_after{-1};    // without requests; < 0: never
  PrefixCacheOptions prefix_cache{
      .bytes = int64_t(2) << 30, .min_state_positions = 32};
  PreemptionPolicy preemption = PreemptionPolicy::longest_first;
  int64_t prefix_positions = 0;  // the prefix cache's, beside its bytes; 0: any
  double admission_watermark = 0.01;
};

struct ServerOptions {
  LoadOptions load;
  bool lora_init_without_apply = false;
  std::filesystem::path
      lora_dir;  // from where adapters may be loaded; "": none
  std::filesystem::path slot_folder;  // where slots are saved; "": nowhere
  std::string alias;                  // "": the folder's name
  bool deterministic = false;
  bool warmup = true;
  bool verbose = false;  // say at the start what was decided
  ChatTemplateOptions chat_template;
  AnswerOptions answers;
  CapacityOptions capacity;
  RequestDefaults defaults;
  RouteSwitches routes;
  int metrics_port = -1;  // where /metrics is served too; < 0: nowhere
  http::Options http;
};

// Returns when the server has stopped. Throws what is wrong with the options,
// the model or the adapters before the port answers.
void run_server(ServerOptions options);

}  // namespace mlxcel::server
