#include "server/openapi.h"

#include <algorithm>
#include <cstddef>
#include <string>

namespace mlxcel::server {

extern const unsigned char embedded_openapi_json[];
extern const std::size_t embedded_openapi_json_size;

namespace {

using nlohmann::ordered_json;

bool has_route(
    const http::Router& router, const std::string& path, std::string method) {
  std::ranges::transform(
      method, method.begin(), [](char c) { return char(c & ~0x20); });
  // Paths of OpenAPI have no sign for a part that takes the rest.
  auto documented = [](std::string route) {
    size_t star = route.find("{*");
    return star == route.npos ? route : route.erase(star + 1, 1);
  };
  return std::ranges::any_of(router.routes(), [&](const http::Route& route) {
    return documented(route.path) == path && route.method == method;
  });
}

}  // namespace

const ordered_json& api_description() {
  static const ordered_json description = ordered_json::parse(
      embedded_openapi_json,
      embedded_openapi_json + embedded_openapi_json_size);
  return description;
}

void add_openapi_route(http::Router& router) {
  http::Route route;
  route.method = "GET";
  route.path = "/openapi.json";
  route.access = http::Access::open;
  ordered_json served = api_description();
  ordered_json paths = ordered_json::object();
  for (const auto& [path, methods] : served["paths"].items()) {
    for (const auto& [method, operation] : methods.items()) {
      if (path == route.path || has_route(router, path, method)) {
        paths[path][method] = operation;
      }
    }
  }
  served["paths"] = std::move(paths);
  route.handler = http::immediate(
      [text = served.dump()](const http::Request&, http::Response& response) {
        response.send(200, "application/json; charset=utf-8", text);
      });
  router.add(std::move(route));
}

}  // namespace mlxcel::server
