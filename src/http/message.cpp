#include "http/message.h"

#include <algorithm>
#include <stdexcept>

namespace mlxcel::http {

namespace {

std::string_view find(const Fields& fields, std::string_view name) {
  auto found = std::ranges::find(fields, name, &Fields::value_type::first);
  return found == fields.end() ? std::string_view() : found->second;
}

}  // namespace

std::string_view Request::header(std::string_view name) const {
  return find(headers, name);
}

std::string_view Request::query_value(std::string_view name) const {
  return find(query, name);
}

std::string_view Request::param(std::string_view name) const {
  return find(params, name);
}

bool Request::has_query(std::string_view name) const {
  return std::ranges::find(query, name, &Fields::value_type::first) !=
         query.end();
}

void Response::send(int status, std::string content_type, std::string body) {
  if (state_ != State::open) {
    throw std::logic_error("a second answer to one request");
  }
  state_ = State::whole;
  status_ = status;
  headers_.emplace_back("content-type", std::move(content_type));
  body_ = std::move(body);
}

void Response::send_json(int status, const nlohmann::json& body) {
  send(status, "application/json; charset=utf-8", dump_json(body));
}

void Response::send_error(const Failure& failure) {
  if (failure.retry_after > 0) {
    add_header("retry-after", std::to_string(failure.retry_after));
  }
  std::string_view id;
  if (auto found =
          std::ranges::find(headers_, "request-id", &Fields::value_type::first);
      found != headers_.end()) {
    id = found->second;
  }
  log_field("error", failure.type);
  send_json(failure.status, error_body(failure, style_, id));
}

void Response::start(int status, std::string content_type) {
  if (state_ != State::open) {
    throw std::logic_error("a second answer to one request");
  }
  state_ = State::streaming;
  status_ = status;
  headers_.emplace_back("content-type", std::move(content_type));
  transport_->begin_stream();
}

void Response::start_events() {
  events_ = true;
  add_header("cache-control", "no-cache");
  add_header("x-accel-buffering", "no");  // or nginx holds pieces back
  start(200, "text/event-stream; charset=utf-8");
}

void Response::on_cancel(std::function<void()> callback) {
  if (cancelled()) {
    callback();
    return;
  }
  callbacks_.push_back(std::move(callback));
}

void Response::cancel() {
  if (cancelled_.exchange(true, std::memory_order_acq_rel)) {
    return;
  }
  for (const auto& callback : std::exchange(callbacks_, {})) {
    callback();
  }
}

bool WriteAwaiter::await_ready() {
  if (response_.cancelled()) {
    return true;
  }
  written_ = piece_.empty();
  return written_;
}

void WriteAwaiter::await_suspend(std::coroutine_handle<> handle) {
  response_.transport_->write(std::move(piece_), [this, handle](bool written) {
    written_ = written;
    handle.resume();
  });
}

std::string event(std::string_view data, std::string_view name) {
  std::string out;
  out.reserve(data.size() + name.size() + 24);
  if (!name.empty()) {
    out.append("event: ").append(name).push_back('\n');
  }
  for (size_t begin = 0;;) {
    size_t end = data.find('\n', begin);
    out.append("data: ").append(data.substr(begin, end - begin));
    out.push_back('\n');
    if (end == std::string_view::npos) {
      break;
    }
    begin = end + 1;
  }
  out.push_back('\n');
  return out;
}

Handler immediate(std::function<void(const Request&, Response&)> handler) {
  return [handler = std::move(handler)](
             const Request& request, Response& response) -> Task<> {
    handler(request, response);
    co_return;
  };
}

}  // namespace mlxcel::http
