// Which handler answers a request.
#pragma once

#include "http/message.h"

#include <string>
#include <string_view>
#include <vector>

namespace mlxcel::http {

// Whether a route needs one of the --api-key values, when there are any.
enum class Access { key, open };

struct Route {
  std::string method;  // "GET"; HEAD is answered from it
  std::string path;    // "/v1/x/{id}": {name} takes one part, {*name} the rest
  Handler handler;
  ErrorStyle style = ErrorStyle::native;
  Access access = Access::key;
};

struct Match {
  const Route* route = nullptr;  // null: nothing answers
  Fields params;
  std::vector<std::string> allowed;  // methods of the path; empty: no such path
};

class Router {
 public:
  // Throws UsageError when method and path are there already.
  void add(Route route);
  // The same handler under several paths.
  void add(const std::vector<std::string>& paths, const Route& route);

  Match match(std::string_view method, std::string_view path) const;
  const std::vector<Route>& routes() const {
    return routes_;
  }

  // How errors of a path that no route answers are written.
  static ErrorStyle style_of(std::string_view path);

 private:
  std::vector<Route> routes_;
};

}  // namespace mlxcel::http
