// GET and POST /lora-adapters; POST /v1/load_lora_adapter and
// /v1/unload_lora_adapter.
#include "core/error.h"
#include "server/body.h"
#include "server/routes.h"

namespace mlxcel::server {

using http::Failure;
using nlohmann::json;

namespace {

http::Task<> load_adapter(
    const App& app, const http::Request& request, http::Response& response) {
  json object = http::parse_body(request.body);
  Body body(object);
  std::string name = body.text("lora_name").value_or("");
  std::string path = body.text("lora_path").value_or("");
  body.neutral("load_inplace", {false});
  body.ignore({"base_model_name"});
  body.finish();
  if (name.empty() || path.empty()) {
    throw Failure::bad_request(
        "both \"lora_name\" and \"lora_path\" must be given",
        name.empty() ? "lora_name" : "lora_path");
  }
  app.adapters.check_new_name(name);
  auto work = [&] { app.load_adapter(name, path); };
  co_await http::background(response.executor(), work);
  response.send(
      200,
      "text/plain; charset=utf-8",
      cat("Success: LoRA adapter '", name, "' added successfully."));
}

http::Task<> unload_adapter(
    const App& app, const http::Request& request, http::Response& response) {
  json object = http::parse_body(request.body);
  Body body(object);
  std::string name = body.text("lora_name").value_or("");
  body.ignore({"lora_int_id"});
  body.finish();
  if (name.empty()) {
    throw Failure::bad_request("\"lora_name\" must be given", "lora_name");
  }
  auto work = [&] { app.unload_adapter(name); };
  co_await http::background(response.executor(), work);
  response.send(
      200,
      "text/plain; charset=utf-8",
      cat("Success: LoRA adapter '", name, "' removed successfully."));
}

}  // namespace

void add_lora_routes(http::Router& router, const App& app) {
  http::Route route;
  route.method = "GET";
  route.path = "/lora-adapters";
  route.handler =
      http::immediate([&app](const http::Request&, http::Response& response) {
        response.send_json(200, app.adapters.list());
      });
  router.add(route);
  route.method = "POST";
  route.handler = http::immediate(
      [&app](const http::Request& request, http::Response& response) {
        app.adapters.set(http::parse_any_body(request.body));
        response.send_json(200, {{"success", true}});
      });
  router.add(route);
}

void add_lora_loading_routes(http::Router& router, const App& app) {
  http::Route route;
  route.method = "POST";
  route.path = "/v1/load_lora_adapter";
  route.style = http::ErrorStyle::openai;
  if (app.load_adapter) {
    route.handler = [&app](const http::Request& request, http::Response& r) {
      return load_adapter(app, request, r);
    };
  } else {
    route.handler = http::immediate([](const http::Request&, http::Response&) {
      throw Failure::not_supported(
          "loading adapters is off; start the server with --lora-dir DIR");
    });
  }
  router.add(route);
  route.path = "/v1/unload_lora_adapter";
  if (app.unload_adapter) {
    route.handler = [&app](const http::Request& request, http::Response& r) {
      return unload_adapter(app, request, r);
    };
  }
  router.add(route);
}

}  // namespace mlxcel::server
