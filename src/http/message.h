// A request as handlers see it, and the answer that they give.
//
//   http::Task<> hello(const http::Request& request, http::Response& response)
//   {
//     response.send_json(200, {{"hello", request.param("name")}});
//     co_return;
//   }
//
// A stream:
//
//   response.start_events();
//   while (auto token = co_await mailbox->next()) {
//     co_await response.write(http::event(token->text));
//   }
#pragma once

#include "http/executor.h"
#include "http/failure.h"
#include "http/task.h"

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mlxcel::http {

using Fields = std::vector<std::pair<std::string, std::string>>;

struct Request {
  std::string method;  // as sent: "GET"
  std::string path;    // percent-decoded, without query and --api-prefix
  Fields query;        // decoded
  Fields headers;      // names in lower case
  Fields params;       // values of the route's {name} parts
  std::string body;
  std::string peer;      // "127.0.0.1:5555", or "unix"
  std::string trace_id;  // the client's x-request-id, or one of ours

  // The first field of that name, else "". Header names in lower case.
  std::string_view header(std::string_view name) const;
  std::string_view query_value(std::string_view name) const;
  std::string_view param(std::string_view name) const;
  bool has_query(std::string_view name) const;
};

// What carries an answer to the client. Called on the request's executor.
class Transport : public Executor {
 public:
  virtual void begin_stream() = 0;
  // `done(false)`: the client is gone. Called once, on the executor.
  virtual void write(std::string piece, std::function<void(bool)> done) = 0;
};

class Response;

class WriteAwaiter {
 public:
  WriteAwaiter(Response& response, std::string piece)
      : response_(response), piece_(std::move(piece)) {}
  bool await_ready();
  void await_suspend(std::coroutine_handle<> handle);
  bool await_resume() const {
    return written_;
  }

 private:
  Response& response_;
  std::string piece_;
  bool written_ = false;
};

class Response {
 public:
  Response(std::shared_ptr<Transport> transport, ErrorStyle style)
      : transport_(std::move(transport)), style_(style) {}
  Response(const Response&) = delete;
  Response& operator=(const Response&) = delete;

  // A header of the answer; before send() or start().
  void add_header(std::string name, std::string value) {
    headers_.emplace_back(std::move(name), std::move(value));
  }

  // The whole answer. It leaves when the handler has returned.
  void send(int status, std::string content_type, std::string body);
  void send_json(int status, const nlohmann::json& body);
  void send_error(const Failure& failure);

  // Begins an answer of unknown length. start_events() is for server-sent
  // events: it adds what proxies need, and pings while nothing else is sent.
  void start(int status, std::string content_type);
  void start_events();

  // co_await response.write(piece): false when the client is gone; then no
  // further piece is sent. Waits while the client does not read.
  auto write(std::string piece) {
    return WriteAwaiter(*this, std::move(piece));
  }

  // True once the client has gone, the request has run into its time limit, or
  // the server stops at once. From any thread.
  bool cancelled() const {
    return cancelled_.load(std::memory_order_acquire);
  }
  // Called once on the executor when that happens; at once if it has.
  void on_cancel(std::function<void()> callback);

  // A mailbox for this handler; cancelling closes it.
  template <typename T>
  std::shared_ptr<Mailbox<T>> mailbox() {
    auto box = std::make_shared<Mailbox<T>>(transport_);
    on_cancel([box] { box->close(); });
    return box;
  }

  std::shared_ptr<Executor> executor() const {
    return transport_;
  }
  ErrorStyle style() const {
    return style_;
  }

  // A fact for the access log's line: tokens, the model, times.
  // The last value of a name stands.
  void log_field(std::string name, nlohmann::json value) {
    for (auto& [known, old] : log_fields_) {
      if (known == name) {
        old = std::move(value);
        return;
      }
    }
    log_fields_.emplace_back(std::move(name), std::move(value));
  }

  // For transports.
  enum class State { open, whole, streaming };
  void cancel();
  void set_style(ErrorStyle style) {
    style_ = style;
  }
  State state() const {
    return state_;
  }
  int status() const {
    return status_;
  }
  bool events() const {
    return events_;
  }
  const Fields& headers() const {
    return headers_;
  }
  std::string& body() {
    return body_;
  }
  const std::vector<std::pair<std::string, nlohmann::json>>& log_fields()
      const {
    return log_fields_;
  }

 private:
  friend class WriteAwaiter;
  std::shared_ptr<Transport> transport_;
  ErrorStyle style_;
  State state_ = State::open;
  int status_ = 0;
  bool events_ = false;
  Fields headers_;
  std::string body_;
  std::atomic<bool> cancelled_{false};
  std::vector<std::function<void()>> callbacks_;
  std::vector<std::pair<std::string, nlohmann::json>> log_fields_;
};

// "data: ...\n\n", with "event: name\n" before it when a name is given. Line
// breaks in the data become further data lines.
std::string event(std::string_view data, std::string_view name = {});

using Handler = std::function<Task<>(const Request&, Response&)>;

// A handler that never waits, as a Handler.
Handler immediate(std::function<void(const Request&, Response&)> handler);

}  // namespace mlxcel::http
