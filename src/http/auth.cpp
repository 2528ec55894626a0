#include "http/auth.h"

#include "core/error.h"
#include "io/json.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace mlxcel::http {

namespace {

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? char(c | 0x20) : c;
}

bool starts_with_word(std::string_view text, std::string_view word) {
  return text.size() > word.size() &&
         std::ranges::equal(
             text.substr(0, word.size()), word, {}, lower, lower) &&
         text[word.size()] == ' ';
}

bool is_constant_time_equal(std::string_view a, std::string_view b) {
  volatile unsigned char difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    unsigned char other = b.empty() ? 0 : (unsigned char)b[i % b.size()];
    difference = (unsigned char)(difference | ((unsigned char)a[i] ^ other));
  }
  return difference == 0;
}

// http://localhost:3000, https://127.0.0.1, http://[::1]:8080
bool is_local(std::string_view origin) {
  size_t scheme = origin.find("://");
  return scheme != std::string_view::npos &&
         is_local_host(origin.substr(scheme + 3));
}

}  // namespace

bool is_local_host(std::string_view host) {
  size_t port = host.starts_with('[') ? host.find(']') : host.find(':');
  if (host.starts_with('[')) {
    host = host.substr(0, port == std::string_view::npos ? port : port + 1);
  } else {
    host = host.substr(0, port);
  }
  return host == "localhost" || host == "127.0.0.1" || host == "[::1]" ||
         host.ends_with(".localhost");
}

bool is_rebound(const Request& request, const Options& options) {
  bool local = is_local_host(options.host) || options.host == "::1" ||
               options.host.starts_with("127.");
  bool browser = !request.header("origin").empty() ||
                 !request.header("sec-fetch-site").empty();
  return local && browser && options.cors.origins.empty() &&
         !is_local_host(request.header("host"));
}

std::string_view key_of(const Request& request) {
  std::string_view bearer = request.header("authorization");
  if (starts_with_word(bearer, "bearer")) {
    bearer.remove_prefix(7);
    bearer.remove_prefix(
        std::min(bearer.find_first_not_of(' '), bearer.size()));
    return bearer;
  }
  return request.header("x-api-key");
}

bool is_known_key(std::string_view key, const std::vector<std::string>& keys) {
  bool known = false;
  for (const std::string& candidate : keys) {
    known |= is_constant_time_equal(key, candidate);
  }
  return known && !key.empty();
}

std::optional<Fields> cors_headers(
    const Cors& cors, std::string_view origin, std::string_view host) {
  bool any = std::ranges::find(cors.origins, "*") != cors.origins.end();
  bool listed = std::ranges::find(cors.origins, origin) != cors.origins.end();
  bool local = cors.origins.empty() && is_local(origin);
  if (!any && !listed && !local) {
    // A page that this server itself delivered.
    size_t scheme = origin.find("://");
    if (scheme != std::string_view::npos && origin.substr(scheme + 3) == host) {
      return Fields();
    }
    return std::nullopt;
  }
  Fields fields;
  // With credentials the browser wants the origin itself, not "*".
  bool star = any && !cors.credentials;
  fields.emplace_back(
      "access-control-allow-origin", star ? "*" : std::string(origin));
  if (!star) {
    fields.emplace_back("vary", "origin");
  }
  if (cors.credentials) {
    fields.emplace_back("access-control-allow-credentials", "true");
  }
  fields.emplace_back(
      "access-control-expose-headers", "x-request-id, retry-after");
  return fields;
}

Fields preflight_headers(
    const Cors& cors,
    const std::vector<std::string>& methods,
    std::string_view wanted_headers,
    bool wants_private_network) {
  // "*" does not cover Authorization, so what was asked for is repeated.
  std::string headers = cors.headers;
  if (headers == "*") {
    headers = wanted_headers.empty() ? "authorization, content-type, x-api-key"
                                     : std::string(wanted_headers);
  }
  Fields fields = {
      {"access-control-allow-methods",
       cors.methods.empty() ? fmt::format("{}", fmt::join(methods, ", "))
                            : cors.methods},
      {"access-control-allow-headers", headers},
      {"access-control-max-age", std::to_string(cors.max_age)}};
  if (wants_private_network) {
    fields.emplace_back("access-control-allow-private-network", "true");
  }
  return fields;
}

std::vector<std::string> read_key_file(const std::filesystem::path& path) {
  std::string text;
  try {
    text = read_text_file(path, size_t(1) << 20);
  } catch (const Error& error) {
    throw UsageError(
        cat("cannot read the API keys of ", path.string()),
        error.what(),
        "give --api-key-file a text file with one key a line");
  }
  std::vector<std::string> keys;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line(text.data() + begin, end - begin);
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) {
      line.remove_suffix(1);
    }
    if (!line.empty()) {
      keys.emplace_back(line);
    }
    begin = end + 1;
  }
  if (keys.empty()) {
    throw UsageError(
        cat("no API key in ", path.string()),
        "every line of it is blank",
        "write one key a line, or leave --api-key-file out");
  }
  return keys;
}

}  // namespace mlxcel::http
