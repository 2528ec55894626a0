// GET /openapi.json: what the routes take and answer.
#pragma once

#include "http/router.h"

#include <nlohmann/json.hpp>

namespace mlxcel::server {

// src/server/openapi.json, as compiled in.
const nlohmann::ordered_json& api_description();

// Serves the part of it that the router's routes, and this one, make up: add it
// last.
void add_openapi_route(http::Router& router);

}  // namespace mlxcel::server
