// The web page at "/": chat, a slider for each adapter's scale, two answers
// side by side. Its files are compiled in (cmake/embed.cmake).
#pragma once

#include "http/router.h"

#include <string>
#include <string_view>

namespace mlxcel::server {

// GET /: the page for browsers (Accept: text/html), the health JSON for others.
void add_playground_route(http::Router& router, bool shown = true);

// Whether an Accept header ranks HTML before JSON, or names it alone.
bool wants_page(std::string_view accept);

}  // namespace mlxcel::server
