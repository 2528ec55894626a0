#include "http/router.h"

#include "core/error.h"

#include <algorithm>
#include <optional>

namespace mlxcel::http {

namespace {

// The values of the pattern's {name} parts, or nothing if the path differs.
std::optional<Fields> match_path(
    std::string_view pattern, std::string_view path) {
  Fields params;
  while (!pattern.empty() && !path.empty()) {
    size_t pattern_end = std::min(pattern.find('/', 1), pattern.size());
    bool all = pattern.starts_with("/{*");
    size_t path_end =
        all ? path.size() : std::min(path.find('/', 1), path.size());
    std::string_view want = pattern.substr(0, pattern_end);
    std::string_view have = path.substr(0, path_end);
    if (want.starts_with("/{") && want.ends_with('}')) {
      if (have.size() < 2) {
        return std::nullopt;
      }
      std::string_view name = want.substr(2, want.size() - 3);
      params.emplace_back(name.substr(all ? 1 : 0), have.substr(1));
    } else if (want != have) {
      return std::nullopt;
    }
    pattern.remove_prefix(pattern_end);
    path.remove_prefix(path_end);
  }
  if (!pattern.empty() || !path.empty()) {
    return std::nullopt;
  }
  return params;
}

}  // namespace

void Router::add(Route route) {
  for (const Route& other : routes_) {
    if (other.method == route.method && other.path == route.path) {
      throw UsageError(
          cat("the route ", route.method, " ", route.path, " exists twice"));
    }
  }
  routes_.push_back(std::move(route));
}

void Router::add(const std::vector<std::string>& paths, const Route& route) {
  for (const std::string& path : paths) {
    Route copy = route;
    copy.path = path;
    add(std::move(copy));
  }
}

Match Router::match(std::string_view method, std::string_view path) const {
  Match match;
  std::string_view wanted = method == "HEAD" ? "GET" : method;
  for (const Route& route : routes_) {
    bool exact = route.path == path;
    std::optional<Fields> params =
        exact ? Fields() : match_path(route.path, path);
    if (!params) {
      continue;
    }
    match.allowed.push_back(route.method);
    // A path without parameters goes before one with them.
    if (route.method == wanted &&
        (match.route == nullptr || (exact && !match.params.empty()))) {
      match.route = &route;
      match.params = std::move(*params);
    }
  }
  std::ranges::sort(match.allowed);
  auto repeated = std::ranges::unique(match.allowed);
  match.allowed.erase(repeated.begin(), repeated.end());
  return match;
}

ErrorStyle Router::style_of(std::string_view path) {
  if (path.starts_with("/v1/messages")) {
    return ErrorStyle::anthropic;
  }
  return path.starts_with("/v1/") ? ErrorStyle::openai : ErrorStyle::native;
}

}  // namespace mlxcel::http
