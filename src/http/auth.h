// API keys, and which web pages may call.
#pragma once

#include "http/message.h"
#include "http/options.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mlxcel::http {

// The key that a request carries: "Authorization: Bearer KEY" or "x-api-key".
std::string_view key_of(const Request& request);

// Compares with every key, whole, however early a difference shows: the time
// taken tells nothing about a key but its length.
bool is_known_key(std::string_view key, const std::vector<std::string>& keys);

// localhost, 127.0.0.1, [::1] or below .localhost, with any port.
bool is_local_host(std::string_view host);

// A web page whose own name leads to this server, which listens for this
// machine alone and allows no such page: how DNS rebinding looks from here.
bool is_rebound(const Request& request, const Options& options);

// The CORS headers of an answer to a page of that origin; empty when the
// origin may not call.
std::optional<Fields> cors_headers(
    const Cors& cors, std::string_view origin, std::string_view host);

// What a preflight's answer adds to these.
Fields preflight_headers(
    const Cors& cors,
    const std::vector<std::string>& methods,
    std::string_view wanted_headers,
    bool wants_private_network);

}  // namespace mlxcel::http
