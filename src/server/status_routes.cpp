// What the server says of itself: /health, /v1/models, /props, /metrics
// and /v1/cache.
#include "core/error.h"
#include "server/answers.h"
#include "server/body.h"
#include "server/openai.h"
#include "server/request_fields.h"
#include "server/routes.h"

#include <algorithm>
#include <ctime>

namespace mlxcel::server {

using http::Failure;
using nlohmann::json;

namespace {

http::Route get(const std::string& path) {
  http::Route route;
  route.method = "GET";
  route.path = path;
  return route;
}

std::string utc_text(int64_t unix_seconds) {
  std::tm parts{};
  auto time = std::time_t(unix_seconds);
  gmtime_r(&time, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%FT%TZ", &parts)};
}

// Of OpenAI's list and of Anthropic's, whose clients read other fields.
json model_entry(const App& app, const std::string& name, bool base) {
  json entry = {
      {"id", name},
      {"object", "model"},
      {"created", app.model.created},
      {"owned_by", "mlxcel"},
      {"type", "model"},
      {"display_name", name},
      {"created_at", utc_text(app.model.created)},
      {"meta",
       {{"n_vocab", app.model.vocab_size},
        {"n_ctx", app.model.context},
        {"n_ctx_train", app.model.model_context},
        {"size", app.model.weight_bytes},
        {"family", app.model.family}}}};
  if (!base) {
    entry["parent"] = app.model.alias;
  }
  return entry;
}

json cache_stats(Engine& engine) {
  PrefixCache& cache = engine.prefix_cache();
  const PrefixCacheStats& stats = cache.stats();
  int64_t block = engine.blocks().block_bytes();
  auto share = [](int64_t part, int64_t whole) {
    return whole > 0 ? double(part) / double(whole) : 0.0;
  };
  return {
      {"enabled", cache.enabled()},
      {"entries", cache.num_entries()},
      {"blocks", cache.num_blocks()},
      {"block_positions", kKvBlockSize},
      {"bytes", cache.num_blocks() * block},
      {"capacity_bytes", cache.max_blocks() * block},
      {"lookups", stats.lookups},
      {"hits", stats.hits},
      {"hit_rate", share(stats.hits, stats.lookups)},
      {"tokens_looked_up", stats.looked_up_positions},
      {"tokens_hit", stats.hit_positions},
      {"token_hit_rate", share(stats.hit_positions, stats.looked_up_positions)},
      {"evicted_blocks", stats.evicted_blocks},
      {"kv_blocks_used", engine.blocks().used()},
      {"kv_blocks_limit", engine.blocks().max_blocks()},
      {"preemptions", engine.stats().preemptions}};
}

// Asks the engine's thread and sends its answer.
http::Task<> answer_from_engine(
    const App& app,
    http::Response& response,
    std::function<json(Engine&)> question) {
  std::optional<json> answer = co_await ask_engine(app, response, question);
  if (answer) {
    response.send_json(200, *answer);
  }
}

json props_of(const App& app) {
  const ServedModel& model = app.model;
  json params = sampling_json(model.defaults.sampling);
  params["n_predict"] = model.defaults.max_tokens;
  auto token = [&](std::optional<int32_t> id) {
    return id ? model.tokenizer->token_text(*id) : std::string();
  };
  return {
      {"default_generation_settings",
       {{"n_ctx", model.context}, {"params", std::move(params)}}},
      {"total_slots", model.slots},
      {"is_sleeping", app.service.asleep()},
      {"model_alias", model.alias},
      {"model_path", model.folder.string()},
      {"model_family", model.family},
      {"chat_template",
       model.chat_template ? model.chat_template->source(false)
                           : std::string()},
      {"bos_token", token(model.tokenizer->bos())},
      {"eos_token", token(model.tokenizer->eos())},
      {"modalities", {{"vision", false}, {"audio", false}}},
      {"surgery", model.surgery},
      {"lora_fused", app.adapters.any_fused()},
      {"build_info", cat("mlxcel ", MLXCEL_VERSION)}};
}

}  // namespace

void add_health_routes(http::Router& router, const App&) {
  http::Route route = get("");
  route.access = http::Access::open;
  route.handler = http::immediate([](const http::Request&, http::Response& r) {
    r.send_json(200, {{"status", "ok"}});
  });
  router.add({"/health", "/v1/health"}, route);
}

void add_model_routes(http::Router& router, const App& app) {
  http::Route list = get("");
  list.style = http::ErrorStyle::openai;
  list.access = http::Access::open;  // as on llama-server
  list.handler =
      http::immediate([&app](const http::Request&, http::Response& response) {
        json data = json::array({model_entry(app, app.model.alias, true)});
        for (const std::string& name : app.adapters.model_names()) {
          data.push_back(model_entry(app, name, false));
        }
        json page = {
            {"object", "list"},
            {"first_id", data.front()["id"]},
            {"last_id", data.back()["id"]},
            {"has_more", false}};
        page["data"] = std::move(data);
        response.send_json(200, page);
      });
  router.add({"/v1/models", "/models"}, list);

  http::Route one = get("/v1/models/{*id}");  // names as org/model too
  one.style = http::ErrorStyle::openai;
  one.handler = http::immediate(
      [&app](const http::Request& request, http::Response& response) {
        std::string name(request.param("id"));
        bool base = name == app.model.alias;
        std::vector<std::string> names = app.adapters.model_names();
        bool adapter =
            std::any_of(names.begin(), names.end(), [&](const auto& known) {
              return known == name || known == app.model.alias + ":" + name;
            });
        if (!base && !adapter) {
          Failure failure(
              404,
              "not_found_error",
              cat("the model '", name, "' is not served here"));
          failure.code = "model_not_found";
          throw failure;
        }
        response.send_json(200, model_entry(app, name, base));
      });
  router.add(one);
}

void add_props_routes(http::Router& router, const App& app) {
  http::Route route = get("/props");
  route.handler =
      http::immediate([&app](const http::Request&, http::Response& response) {
        response.send_json(200, props_of(app));
      });
  router.add(route);
  route.method = "POST";
  route.handler = http::immediate(
      [&app](const http::Request& request, http::Response& response) {
        if (!app.switches.props_post) {
          throw Failure::not_supported(
              "changing properties is off; start the server with --props");
        }
        json object = http::parse_body(request.body);
        Body body(object);
        body.finish();  // as on llama-server, no property can be changed
        response.send_json(200, {{"success", true}});
      });
  router.add(route);
}

void add_metrics_routes(http::Router& router, const App& app) {
  http::Route route = get("/metrics");
  route.handler =
      http::immediate([&app](const http::Request&, http::Response& response) {
        if (!app.switches.metrics) {
          throw Failure::not_supported(
              "metrics are off; start the server with --metrics");
        }
        response.send(
            200, std::string(http::Registry::kContentType), app.metrics.text());
      });
  router.add(route);
}

void add_cache_routes(http::Router& router, const App& app) {
  http::Route route = get("/v1/cache/stats");
  route.handler = [&app](const http::Request&, http::Response& response) {
    return answer_from_engine(app, response, cache_stats);
  };
  router.add(route);
  route.method = "POST";
  route.path = "/v1/cache/reset";
  route.handler = [&app](const http::Request&, http::Response& response) {
    return answer_from_engine(app, response, [](Engine& engine) {
      int64_t blocks = engine.prefix_cache().num_blocks();
      engine.prefix_cache().clear();
      return json{{"success", true}, {"freed_blocks", blocks}};
    });
  };
  router.add(route);
}

}  // namespace mlxcel::server
