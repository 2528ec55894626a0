// The routes: one file each. What they share is handed to all.
#pragma once

#include "http/metrics.h"
#include "http/router.h"
#include "server/adapters.h"
#include "server/served_model.h"
#include "server/service.h"
#include "server/slot_file.h"

#include <filesystem>
#include <functional>

namespace mlxcel::server {

struct RouteSwitches {
  bool metrics = false;
  bool slots = true;
  bool props_post = false;
  bool playground = true;
};

// All parts outlive the routes.
struct App {
  const ServedModel& model;
  Adapters& adapters;
  Service& service;
  http::Registry& metrics;
  RouteSwitches switches;
  // Where slots are saved, "" where that is off; what tells their content from
  // other models', and how large its parts are.
  std::filesystem::path slot_folder;
  std::string slot_fingerprint;
  SlotSizes slot_sizes;
  // Loads an adapter from a folder while the server runs, and forgets one.
  // Null where --lora-dir allows none. Called on a thread that may block.
  std::function<void(const std::string& name, const std::string& path)>
      load_adapter;
  std::function<void(const std::string& name)> unload_adapter;
};

void add_health_routes(http::Router& router, const App& app);
void add_model_routes(http::Router& router, const App& app);
void add_completion_routes(http::Router& router, const App& app);
void add_openai_completion_routes(http::Router& router, const App& app);
void add_chat_routes(http::Router& router, const App& app);
void add_responses_routes(http::Router& router, const App& app);
void add_messages_routes(http::Router& router, const App& app);
void add_lora_routes(http::Router& router, const App& app);
void add_lora_loading_routes(http::Router& router, const App& app);
void add_tokenize_routes(http::Router& router, const App& app);
void add_template_routes(http::Router& router, const App& app);
void add_props_routes(http::Router& router, const App& app);
void add_slots_routes(http::Router& router, const App& app);
void add_metrics_routes(http::Router& router, const App& app);
void add_cache_routes(http::Router& router, const App& app);
// Those of other kinds of models and of parts that are not built: 501.
void add_unbuilt_routes(http::Router& router);

// All of them.
void add_routes(http::Router& router, const App& app);

}  // namespace mlxcel::server
