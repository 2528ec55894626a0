// The document at /openapi.json against the routes that there are.
#include "server/openapi.h"

#include "server/playground.h"
#include "server/routes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace mlxcel::server {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

struct NoTransport : http::Transport {
  void post(std::function<void()>) override {}
  void post_blocking(std::function<void()>) override {}
  void begin_stream() override {}
  void write(std::string, std::function<void(bool)>) override {}
};

// Routes are only registered, so the parts that they would use are not needed.
template <typename T>
T& unused() {
  alignas(T) static std::byte room[sizeof(T)];
  return reinterpret_cast<T&>(room);
}

http::Router all_routes() {
  static http::Registry metrics;
  static App app{
      unused<ServedModel>(), unused<Adapters>(), unused<Service>(), metrics};
  http::Router router;
  add_routes(router, app);
  return router;
}

// What a handler that never waits answers.
std::string answer(
    const http::Router& router,
    const std::string& path,
    http::Request request) {
  http::Match match = router.match("GET", path);
  EXPECT_NE(match.route, nullptr) << path;
  http::Response response(
      std::make_shared<NoTransport>(), http::ErrorStyle::native);
  http::start(
      match.route->handler(request, response),
      [](std::exception_ptr error) { EXPECT_EQ(error, nullptr); });
  EXPECT_EQ(response.status(), 200);
  return response.body();
}

std::set<std::string> documented(const json& document) {
  std::set<std::string> out;
  for (const auto& [path, methods] : document["paths"].items()) {
    for (const auto& [method, operation] : methods.items()) {
      std::string name = method;
      for (char& c : name) {
        c = char(std::toupper((unsigned char)c));
      }
      out.insert(name + " " + path);
    }
  }
  return out;
}

// "{*id}" takes slashes too, which OpenAPI cannot say.
std::string documented_path(std::string path) {
  size_t star = path.find("{*");
  return star == path.npos ? path : path.erase(star + 1, 1);
}

TEST(OpenApi, DescribesExactlyTheRoutesThatThereAre) {
  http::Router router = all_routes();
  std::set<std::string> routes;
  for (const http::Route& route : router.routes()) {
    routes.insert(route.method + " " + documented_path(route.path));
  }
  json document = json::parse(answer(router, "/openapi.json", {}));
  EXPECT_EQ(documented(document), routes);
}

TEST(OpenApi, SaysWhichRoutesAreOpen) {
  http::Router router = all_routes();
  const ordered_json& paths = api_description()["paths"];
  for (const http::Route& route : router.routes()) {
    std::string method = route.method == "GET"    ? "get"
                         : route.method == "POST" ? "post"
                                                  : "delete";
    const ordered_json& operation = paths[documented_path(route.path)][method];
    EXPECT_EQ(
        route.access == http::Access::open, operation.contains("security"))
        << route.path;
    bool error = operation["responses"].contains("default") ||
                 operation["responses"].contains("501") ||
                 operation["responses"].contains("403");
    EXPECT_TRUE(error) << route.path;
  }
}

// Every reference leads somewhere, and every schema is used.
void collect(const ordered_json& value, std::set<std::string>& found) {
  if (value.is_object() && value.contains("$ref")) {
    found.insert(value["$ref"].get<std::string>());
  }
  if (value.is_structured()) {
    for (const ordered_json& part : value) {
      collect(part, found);
    }
  }
}

TEST(OpenApi, HasNoLooseReferences) {
  const ordered_json& document = api_description();
  std::set<std::string> found;
  collect(document, found);
  for (const std::string& reference : found) {
    EXPECT_NO_THROW(
        (void)document.at(ordered_json::json_pointer(reference.substr(1))))
        << reference;
  }
  for (const auto& [name, schema] : document["components"]["schemas"].items()) {
    EXPECT_TRUE(found.contains("#/components/schemas/" + name)) << name;
  }
}

TEST(Playground, BrowsersGetThePageAndOthersTheHealth) {
  http::Router router;
  add_playground_route(router);
  http::Request browser;
  browser.headers = {{"accept", "text/html,application/xhtml+xml,*/*;q=0.8"}};
  std::string page = answer(router, "/", browser);
  EXPECT_THAT(page, ::testing::StartsWith("<!doctype html>"));
  EXPECT_THAT(page, ::testing::Not(::testing::HasSubstr("{{")));
  EXPECT_THAT(page, ::testing::Not(::testing::HasSubstr("http://")));
  EXPECT_THAT(page, ::testing::Not(::testing::HasSubstr("https://")));
  EXPECT_EQ(answer(router, "/", {}), "{\"status\":\"ok\"}");
  http::Router plain;
  add_playground_route(plain, false);
  EXPECT_EQ(answer(plain, "/", browser), "{\"status\":\"ok\"}");
  EXPECT_TRUE(wants_page("text/html"));
  EXPECT_TRUE(wants_page("text/html, application/json"));
  EXPECT_FALSE(wants_page("application/json, text/html"));
  EXPECT_FALSE(wants_page("*/*"));
  EXPECT_FALSE(wants_page(""));
}

}  // namespace
}  // namespace mlxcel::server
