// Requests from the wire: parsing, and what is decided before a handler runs.
#include "http/exchange.h"

#include "core/error.h"
#include "core/log.h"
#include "http/access_log.h"
#include "http/auth.h"
#include "http/url.h"

#include <fmt/ranges.h>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include <algorithm>
#include <ctime>

namespace mlxcel::http {

namespace beast = boost::beast::http;

namespace {

using Parser = beast::request_parser<beast::string_body>;

// A body that is not wanted is read away up to this size, so that the
// connection can stay; past it the connection closes.
constexpr size_t kSkippedBody = size_t(64) << 10;

std::string_view reason_of(int status) {
  auto text = beast::obsolete_reason(beast::int_to_status(unsigned(status)));
  return {text.data(), text.size()};
}

std::string to_lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    c = c >= 'A' && c <= 'Z' ? char(c | 0x20) : c;
  }
  return out;
}

// RFC 9110, section 5.6.7.
std::string http_date() {
  std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[40];
  size_t size =
      std::strftime(text, sizeof(text), "%a, %d %b %Y %H:%M:%S GMT", &parts);
  return std::string(text, size);
}

Failure parse_failure(const error_code& error, const Limits& limits) {
  if (error == beast::error::header_limit) {
    return Failure(
        431,
        "invalid_request_error",
        cat("the request's headers are longer than ",
            limits.header_bytes,
            " bytes"));
  }
  if (error == beast::error::body_limit) {
    return Failure(
        413,
        "request_too_large",
        cat("the request's body is longer than ", limits.body_bytes, " bytes"));
  }
  return Failure(
      400,
      "invalid_request_error",
      cat("this is no valid HTTP request: ", error.message()));
}

// The path and query of "/a?b", or of "http://host/a?b". Empty for a target
// that is neither.
std::string_view origin_form(std::string_view target) {
  for (std::string_view scheme : {"http://", "https://"}) {
    if (target.starts_with(scheme)) {
      size_t slash = target.find('/', scheme.size());
      return slash == std::string_view::npos ? "/" : target.substr(slash);
    }
  }
  return target.starts_with('/') ? target : std::string_view();
}

std::string_view without_prefix(
    std::string_view path, std::string_view prefix) {
  if (prefix.empty()) {
    return path;
  }
  if (path == prefix) {
    return "/";
  }
  bool below = path.starts_with(prefix) && path[prefix.size()] == '/';
  return below ? path.substr(prefix.size()) : std::string_view();
}

void fill(Request& request, const Parser& parser) {
  const auto& head = parser.get();
  request.method = std::string(head.method_string());
  for (const auto& field : head) {
    request.headers.emplace_back(
        to_lower({field.name_string().data(), field.name_string().size()}),
        std::string(field.value()));
  }
}

}  // namespace

awaitable<bool> Connection::read_request(Exchange& exchange) {
  const Limits& limits = shared_->options.limits;
  Parser parser;
  parser.header_limit(std::uint32_t(limits.header_bytes));
  parser.body_limit(limits.body_bytes);

  receiving_ = true;
  Input state = Input::data;
  auto begun = [this] {
    while (input_.starts_with("\r\n")) {  // RFC 9112, section 2.2
      consume(2);
    }
    return !input_.empty() && input_ != "\r";
  };
  while (state == Input::data && !begun()) {
    state = co_await more_input(Clock::now() + limits.idle_time);
  }
  if (state != Input::data) {
    co_return false;
  }

  exchange.started = Clock::now();
  Clock::time_point deadline = exchange.started + limits.header_time;
  error_code error;
  while (!parser.is_header_done()) {
    consume(parser.put(asio::buffer(input_), error));
    if (error == beast::error::need_more) {
      error = {};
      state = co_await more_input(deadline);
      if (state != Input::data) {
        break;
      }
    } else if (error) {
      break;
    }
  }
  fill(exchange.request, parser);
  exchange.request.peer = peer_;
  exchange.request.trace_id = trace_id_of(exchange.request);
  exchange.is_http11 = parser.get().version() >= 11;
  exchange.keep_alive = parser.is_header_done() && parser.keep_alive();
  exchange.started = Clock::now();
  if (state == Input::ended) {
    co_return false;
  }
  if (state == Input::late) {
    exchange.keep_alive = false;
    reject(
        exchange,
        Failure(408, "timeout_error", "the request's headers came too slowly"));
    co_return true;
  }
  std::string target(parser.get().target());
  if (!error || error == beast::error::body_limit) {
    size_t hosts = parser.get().count(beast::field::host);
    if (hosts > 1 || (hosts == 0 && exchange.is_http11)) {
      error = beast::error::bad_field;
    }
  }
  exchange.target = target;
  bool wanted = false;
  if (error) {
    exchange.keep_alive = false;
    std::string_view path = origin_form(target);
    exchange.request.path = path.substr(0, path.find('?'));
    exchange.response.set_style(Router::style_of(exchange.request.path));
    reject(exchange, parse_failure(error, limits));
    co_return true;
  }
  wanted = accept_head(exchange);

  if (parser.is_done()) {
    co_return true;
  }
  bool expects = to_lower(exchange.request.header("expect")) == "100-continue";
  if (!wanted) {
    bool small =
        parser.content_length().value_or(kSkippedBody + 1) <= kSkippedBody &&
        !expects;
    if (!small) {
      exchange.keep_alive = false;
      co_return true;
    }
  } else if (expects) {
    queue("HTTP/1.1 100 Continue\r\n\r\n");
  }
  parser.eager(true);
  deadline = Clock::now() + limits.body_time;
  while (!parser.is_done()) {
    if (input_.empty()) {
      state = co_await more_input(deadline);
    }
    if (state == Input::data) {
      consume(parser.put(asio::buffer(input_), error));
    }
    if (error == beast::error::need_more) {
      error = {};
      // A chunk's head that is not whole yet: it needs more than there is.
      if (!input_.empty()) {
        state = co_await more_input(deadline);
      }
    }
    if (error || state != Input::data) {
      break;
    }
  }
  if (parser.is_done()) {
    exchange.request.body = std::move(parser.get().body());
    co_return true;
  }
  exchange.keep_alive = false;
  if (state == Input::ended) {
    co_return false;
  }
  if (wanted) {
    reject(
        exchange,
        error
            ? parse_failure(error, limits)
            : Failure(
                  408, "timeout_error", "the request's body came too slowly"));
  }
  co_return true;
}

bool Connection::accept_head(Exchange& exchange) {
  Request& request = exchange.request;
  const Options& options = shared_->options;
  std::string_view target = origin_form(exchange.target);
  if (exchange.target == "*" && request.method == "OPTIONS") {
    target = "/";
  }
  size_t question = std::min(target.find('?'), target.size());
  auto path = percent_decode(target.substr(0, question), false);
  auto query =
      parse_query(question < target.size() ? target.substr(question + 1) : "");
  if (target.empty() || !path || !query) {
    reject(exchange, Failure::bad_request("the request's target is malformed"));
    return false;
  }
  request.path = std::string(without_prefix(*path, options.prefix));
  request.query = std::move(*query);

  Match match = shared_->router.match(request.method, request.path);
  exchange.route = match.route;
  request.params = std::move(match.params);
  exchange.response.set_style(
      match.route ? match.route->style : Router::style_of(request.path));

  exchange.response.add_header("x-request-id", request.trace_id);
  if (exchange.response.style() == ErrorStyle::anthropic) {
    exchange.response.add_header("request-id", request.trace_id);
  }
  if (std::string parent = traceparent_of(request); !parent.empty()) {
    exchange.response.add_header("traceparent", parent);
  }
  if (!accept_origin(exchange, match.allowed)) {
    return false;
  }
  if (match.allowed.empty()) {
    std::string shown = request.path.empty() ? *path : request.path;
    reject(
        exchange,
        Failure(
            404,
            "not_found_error",
            cat("there is nothing at ", request.method, " ", shown)));
    return false;
  }
  if (match.route == nullptr) {
    std::string allowed = fmt::format("{}", fmt::join(match.allowed, ", "));
    exchange.response.add_header("allow", allowed);
    if (request.method == "OPTIONS") {
      exchange.response.send(204, "text/plain", "");
      return false;
    }
    reject(
        exchange,
        Failure(
            405,
            "method_not_allowed",
            cat(request.path, " takes ", allowed, ", not ", request.method)));
    return false;
  }
  if (match.route->access == Access::key && !options.api_keys.empty() &&
      !is_known_key(key_of(request), options.api_keys)) {
    exchange.response.add_header("www-authenticate", "Bearer");
    Failure failure(
        401,
        "authentication_error",
        key_of(request).empty()
            ? "this server needs an API key: send it as Authorization: Bearer "
              "KEY or as x-api-key"
            : "the API key is not valid");
    failure.code = "invalid_api_key";
    reject(exchange, failure);
    return false;
  }
  std::string coding = to_lower(request.header("content-encoding"));
  if (!coding.empty() && coding != "identity") {
    exchange.response.add_header("accept-encoding", "identity");
    reject(
        exchange,
        Failure(
            415,
            "invalid_request_error",
            cat("bodies with the content-encoding ",
                coding,
                " are not read here; send it uncompressed")));
    return false;
  }
  return true;
}

bool Connection::accept_origin(
    Exchange& exchange, const std::vector<std::string>& allowed) {
  const Request& request = exchange.request;
  std::string_view origin = request.header("origin");
  if (is_rebound(request, shared_->options)) {
    reject(
        exchange,
        Failure(
            403,
            "permission_error",
            cat("this server is for this machine, and pages of ",
                request.header("host"),
                " may not call it; start it with --allowed-origins to allow "
                "them")));
    return false;
  }
  if (origin.empty()) {
    return true;
  }
  bool preflight = request.method == "OPTIONS" &&
                   !request.header("access-control-request-method").empty();
  auto fields =
      cors_headers(shared_->options.cors, origin, request.header("host"));
  if (!fields) {
    // Browsers send what needs no preflight before they ask; it must not act.
    bool harmless =
        !preflight && (request.method == "GET" || request.method == "HEAD" ||
                       request.method == "OPTIONS");
    if (harmless) {
      return true;
    }
    reject(
        exchange,
        Failure(
            403,
            "permission_error",
            cat("pages of ",
                origin,
                " may not call this server; start it with --allowed-origins "
                "to allow them")));
    return false;
  }
  for (auto& [name, value] : *fields) {
    exchange.response.add_header(name, value);
  }
  if (!preflight || allowed.empty()) {
    return true;
  }
  for (auto& [name, value] : preflight_headers(
           shared_->options.cors,
           allowed,
           request.header("access-control-request-headers"),
           !request.header("access-control-request-private-network").empty())) {
    exchange.response.add_header(name, value);
  }
  exchange.response.send(204, "text/plain", "");
  return false;
}

void Connection::reject(Exchange& exchange, const Failure& failure) {
  exchange.response.send_error(failure);
}

// Turns how the handler ended into an answer, where there is none yet.
void Connection::settle(Exchange& exchange) {
  Response& response = exchange.response;
  const Failure late(
      504, "timeout_error", "the request ran into the time limit");
  if (response.state() == Response::State::streaming) {
    if (exchange.timed_out || exchange.error) {
      Failure failure = exchange.timed_out ? late : to_failure(exchange.error);
      response.log_field("error", failure.type);
      // The limit cancels the answer, though the client is still there.
      bool there =
          exchange.timed_out ? !ended_ && !closed_ : !response.cancelled();
      if (response.events() && there) {
        std::string text = event(
            dump_json(error_body(
                failure, response.style(), exchange.request.trace_id)),
            response.style() == ErrorStyle::anthropic ? "error" : "");
        write(std::move(text), {});
      }
    }
    return;
  }
  if (response.state() == Response::State::whole) {
    if (exchange.error) {
      log_warning(
          cat("after its answer, ",
              exchange.request.path,
              " failed: ",
              to_failure(exchange.error).what()));
    }
    return;
  }
  if (exchange.timed_out) {
    response.send_error(late);
  } else if (exchange.error) {
    response.send_error(to_failure(exchange.error));
  } else if (!response.cancelled()) {
    response.send_error(Failure(500, "server_error", "internal error"));
  } else if (!closed_ && shared_->draining) {
    response.send_error(
        Failure(503, "unavailable_error", "the server is stopping"));
  }
}

std::string Connection::head_of(
    Exchange& exchange, std::optional<size_t> length) {
  const Response& response = exchange.response;
  exchange.keep_alive &= !draining_ && !shared_->draining;
  std::string head = fmt::format(
      "HTTP/1.1 {} {}\r\nserver: mlxcel\r\ndate: {}\r\n",
      response.status(),
      reason_of(response.status()),
      http_date());
  for (const auto& [name, value] : response.headers()) {
    if (response.status() == 204 && name == "content-type") {
      continue;
    }
    head += name + ": ";
    // No value may end the line: it could carry what a client sent.
    std::ranges::remove_copy_if(value, std::back_inserter(head), [](char c) {
      return c == '\r' || c == '\n' || c == '\0';
    });
    head += "\r\n";
  }
  if (length && response.status() != 204) {
    head += fmt::format("content-length: {}\r\n", *length);
  } else if (!length && exchange.chunked) {
    head += "transfer-encoding: chunked\r\n";
  }
  head += exchange.keep_alive ? "connection: keep-alive\r\n\r\n"
                              : "connection: close\r\n\r\n";
  return head;
}

void Connection::report(const Exchange& exchange) {
  constexpr int kClientLeft = 499;  // as nginx logs it
  bool left =
      exchange.response.state() == Response::State::open || write_failed_;
  AccessRecord record{exchange.request, exchange.response};
  record.status = left ? kClientLeft : exchange.response.status();
  record.bytes = exchange.bytes;
  record.seconds =
      std::chrono::duration<double>(Clock::now() - exchange.started).count();
  if (shared_->registry != nullptr) {
    // Labels come from our routes alone, so clients cannot add series.
    std::string route = exchange.route ? exchange.route->path : "none";
    shared_->registry
        ->counter(
            "mlxcel_http_requests_total",
            "Answered requests.",
            {{"route", route}, {"status", std::to_string(record.status)}})
        .add();
    shared_->registry
        ->histogram(
            "mlxcel_http_request_seconds",
            "From a request's last header to its answer's last byte.",
            latency_bounds(),
            {{"route", route}})
        .observe(record.seconds);
  }
  if (shared_->options.access_log != LogFormat::off) {
    log_info(access_line(record, shared_->options.access_log));
  }
}

}  // namespace mlxcel::http
