#include "server/routes.h"

#include "server/openapi.h"
#include "server/playground.h"

namespace mlxcel::server {

void add_routes(http::Router& router, const App& app) {
  add_playground_route(router, app.switches.playground);
  add_health_routes(router, app);
  add_model_routes(router, app);
  add_completion_routes(router, app);
  add_openai_completion_routes(router, app);
  add_chat_routes(router, app);
  add_responses_routes(router, app);
  add_messages_routes(router, app);
  add_lora_routes(router, app);
  add_lora_loading_routes(router, app);
  add_tokenize_routes(router, app);
  add_template_routes(router, app);
  add_props_routes(router, app);
  add_slots_routes(router, app);
  add_metrics_routes(router, app);
  add_cache_routes(router, app);
  add_unbuilt_routes(router);
  add_openapi_route(router);
}

}  // namespace mlxcel::server
