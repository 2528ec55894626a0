// The connection's life: reading, the handler, writing, closing.
#include "http/connection.h"

#include "core/error.h"
#include "core/log.h"
#include "http/exchange.h"

#include <algorithm>

namespace mlxcel::http {

namespace {

// Input taken while a request runs; more waits in the kernel.
constexpr size_t kReadAhead = size_t(256) << 10;
constexpr size_t kReadSize = size_t(16) << 10;
// After an answer that ends the connection, the client may take this long to
// read it before what is left of its own request resets it.
constexpr std::chrono::seconds kLinger{2};
// A slow but steady reader of a long answer gets time in proportion.
constexpr size_t kSlowestBytesPerSecond = size_t(16) << 10;

std::string chunk(std::string_view piece) {
  return fmt::format("{:x}\r\n{}\r\n", piece.size(), piece);
}

}  // namespace

Shared::Shared(Options settings, const Router& routes, Registry* metrics)
    : options(std::move(settings)),
      router(routes),
      context(std::max(1, options.threads)),
      blocking(size_t(std::max(1, options.threads))),
      registry(metrics) {
  if (metrics != nullptr) {
    open_connections =
        &metrics->gauge("mlxcel_http_connections", "Open client connections.");
    running_requests = &metrics->gauge(
        "mlxcel_http_requests_running", "Requests whose handler runs.");
    bytes_sent = &metrics->counter(
        "mlxcel_http_sent_bytes_total", "Bytes sent to clients, before TLS.");
  }
}

void Shared::add(Connection* connection) {
  std::lock_guard lock(mutex_);
  connections_.insert(connection);
  if (open_connections != nullptr) {
    open_connections->set(double(connections_.size()));
  }
}

void Shared::remove(Connection* connection) {
  std::function<void()> callback;
  {
    std::lock_guard lock(mutex_);
    connections_.erase(connection);
    if (open_connections != nullptr) {
      open_connections->set(double(connections_.size()));
    }
    if (connections_.empty() && draining) {
      callback = when_empty;
    }
  }
  if (callback) {
    callback();
  }
}

std::vector<std::shared_ptr<Connection>> Shared::connections() {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<Connection>> out;
  for (Connection* connection : connections_) {
    out.push_back(connection->shared_from_this());
  }
  return out;
}

int Shared::connection_count() {
  std::lock_guard lock(mutex_);
  return int(connections_.size());
}

Connection::Connection(
    std::shared_ptr<Shared> shared, Socket socket, std::string peer)
    : shared_(std::move(shared)),
      strand_(asio::make_strand(shared_->context)),
      socket_(std::move(socket)),
      peer_(std::move(peer)),
      input_timer_(strand_),
      reader_timer_(strand_),
      handler_timer_(strand_),
      write_timer_(strand_),
      ping_timer_(strand_) {
  if (shared_->tls) {
    tls_.emplace(socket_, *shared_->tls);
  }
}

Connection::~Connection() = default;

void Connection::start() {
  shared_->add(this);
  asio::co_spawn(
      strand_,
      [self = shared_from_this()] { return self->run(); },
      asio::detached);
}

void Connection::drain() {
  asio::post(strand_, [self = shared_from_this()] {
    self->draining_ = true;
    if (self->receiving_) {
      self->input_timer_.cancel();
      if (!self->reading_) {  // still shaking hands
        self->close_now();
      }
    } else if (self->writing_) {
      self->limit_write();
    }
  });
}

void Connection::stop() {
  asio::post(strand_, [self = shared_from_this()] {
    self->draining_ = true;
    self->close_now();
  });
}

void Connection::post(std::function<void()> work) {
  asio::post(
      strand_, [self = shared_from_this(), work = std::move(work)] { work(); });
}

void Connection::post_blocking(std::function<void()> work) {
  asio::post(
      shared_->blocking,
      [self = shared_from_this(), work = std::move(work)] { work(); });
}

awaitable<void> Connection::run() {
  try {
    bool open = !tls_ || co_await handshake();
    if (open) {
      reading_ = true;
      asio::co_spawn(
          strand_,
          [self = shared_from_this()] { return self->read_all(); },
          asio::detached);
      bool more = true;
      while (more) {
        more = co_await serve_one();
      }
      co_await close();
    }
  } catch (const std::exception& error) {
    log_warning(cat("a connection failed: ", error.what()));
  }
  close_now();
  while (reading_) {
    input_timer_.expires_at(Clock::time_point::max());
    co_await input_timer_.async_wait(kResult);
  }
  shared_->remove(this);
}

awaitable<bool> Connection::handshake() {
  write_timer_.expires_after(shared_->options.limits.header_time);
  write_timer_.async_wait([self = shared_from_this()](error_code error) {
    if (!error) {
      self->close_now();
    }
  });
  auto [error] =
      co_await tls_->async_handshake(asio::ssl::stream_base::server, kResult);
  write_timer_.cancel();
  co_return !error && !closed_;
}

awaitable<void> Connection::read_all() {
  try {
    std::vector<char> buffer(kReadSize);
    while (!closed_) {
      if (input_.size() >= kReadAhead && !discard_) {
        reader_timer_.expires_at(Clock::time_point::max());
        co_await reader_timer_.async_wait(kResult);
        continue;
      }
      error_code error;
      size_t size = 0;
      if (tls_) {
        std::tie(error, size) =
            co_await tls_->async_read_some(asio::buffer(buffer), kResult);
      } else {
        std::tie(error, size) =
            co_await socket_.async_read_some(asio::buffer(buffer), kResult);
      }
      if (error) {
        break;
      }
      if (!discard_) {
        input_.append(buffer.data(), size);
        input_timer_.cancel();
      }
    }
  } catch (const std::exception& error) {
    log_warning(cat("reading from a client failed: ", error.what()));
  }
  reading_ = false;
  peer_left();
}

void Connection::consume(size_t size) {
  input_.erase(0, size);
  if (input_.size() < kReadAhead) {
    reader_timer_.cancel();
  }
}

awaitable<Connection::Input> Connection::more_input(
    Clock::time_point deadline) {
  size_t had = input_.size();
  while (input_.size() == had) {
    if (ended_ || closed_ || (receiving_ && draining_)) {
      co_return Input::ended;
    }
    if (Clock::now() >= deadline) {
      co_return Input::late;
    }
    input_timer_.expires_at(deadline);
    co_await input_timer_.async_wait(kResult);
  }
  co_return Input::data;
}

awaitable<bool> Connection::serve_one() {
  Exchange exchange(shared_from_this());
  bool there = co_await read_request(exchange);
  if (!there) {
    co_return false;
  }
  receiving_ = false;
  current_ = &exchange;
  if (exchange.response.state() == Response::State::open) {
    if (ended_) {
      exchange.response.cancel();
    }
    co_await handle(exchange);
  }
  co_await finish(exchange);
  current_ = nullptr;
  report(exchange);
  co_return exchange.keep_alive && !write_failed_ && !closed_ && !draining_;
}

awaitable<void> Connection::handle(Exchange& exchange) {
  bool done = false;
  std::exception_ptr& error = exchange.error;
  if (shared_->running_requests != nullptr) {
    shared_->running_requests->add(1);
  }
  try {
    http::start(
        exchange.route->handler(exchange.request, exchange.response),
        [&, self = shared_from_this()](std::exception_ptr thrown) {
          error = std::move(thrown);
          done = true;
          self->handler_timer_.cancel();
        });
  } catch (...) {  // thrown before the first suspension of no coroutine
    error = std::current_exception();
    done = true;
  }
  auto limit = shared_->options.limits.request_time;
  Clock::time_point deadline =
      limit.count() > 0 ? Clock::now() + limit : Clock::time_point::max();
  while (!done) {
    handler_timer_.expires_at(deadline);
    co_await handler_timer_.async_wait(kResult);
    if (!done && Clock::now() >= deadline) {
      exchange.timed_out = true;
      deadline = Clock::time_point::max();
      exchange.response.cancel();
    }
  }
  if (shared_->running_requests != nullptr) {
    shared_->running_requests->add(-1);
  }
}

awaitable<void> Connection::finish(Exchange& exchange) {
  settle(exchange);
  Response& response = exchange.response;
  ping_timer_.cancel();
  if (response.state() == Response::State::whole) {
    bool head_only = exchange.request.method == "HEAD";
    std::string bytes = head_of(exchange, response.body().size());
    if (!head_only) {
      bytes += response.body();
      exchange.bytes = response.body().size();
    }
    queue(std::move(bytes));
  } else if (response.state() == Response::State::streaming) {
    // Without its last chunk, a stream that was cut short shows as such.
    bool whole = !response.cancelled() && !exchange.error;
    if (whole && exchange.chunked) {
      queue("0\r\n\r\n");
    }
    exchange.keep_alive &= whole && exchange.chunked;
  } else {
    exchange.keep_alive = false;
  }
  while (writing_) {
    handler_timer_.expires_at(Clock::time_point::max());
    co_await handler_timer_.async_wait(kResult);
  }
}

awaitable<void> Connection::close() {
  if (ended_ || closed_ || write_failed_) {
    co_return;
  }
  discard_ = true;
  input_.clear();
  reader_timer_.cancel();
  Clock::time_point deadline = Clock::now() + kLinger;
  if (tls_) {
    write_timer_.expires_at(deadline);
    write_timer_.async_wait([self = shared_from_this()](error_code error) {
      if (!error) {
        self->close_now();
      }
    });
    co_await tls_->async_shutdown(kResult);
    write_timer_.cancel();
    co_return;
  }
  error_code ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);
  while (!ended_ && Clock::now() < deadline) {
    input_timer_.expires_at(deadline);
    co_await input_timer_.async_wait(kResult);
  }
}

void Connection::begin_stream() {
  Exchange& exchange = *current_;
  exchange.chunked = exchange.is_http11;
  exchange.keep_alive &= exchange.chunked;
  queue(head_of(exchange, std::nullopt));
  if (exchange.response.events()) {
    ping_later();
  }
}

void Connection::write(std::string piece, std::function<void(bool)> done) {
  Exchange& exchange = *current_;
  if (exchange.response.state() != Response::State::streaming) {
    throw std::logic_error("a piece of an answer that is no stream");
  }
  if (exchange.request.method == "HEAD") {
    piece.clear();
  }
  exchange.bytes += piece.size();
  if (exchange.chunked && !piece.empty()) {
    piece = chunk(piece);
  }
  queue(std::move(piece), std::move(done));
}

void Connection::queue(std::string bytes, std::function<void(bool)> done) {
  waiting_.push_back({std::move(bytes), std::move(done)});
  if (!writing_) {
    writing_ = true;
    write_next();
  }
}

void Connection::write_next() {
  sending_ = std::exchange(waiting_, {});
  sending_bytes_.clear();
  for (Output& output : sending_) {
    if (sending_bytes_.empty()) {
      sending_bytes_ = std::move(output.bytes);
    } else {
      sending_bytes_ += output.bytes;
    }
  }
  auto self = shared_from_this();
  if (write_failed_ || closed_) {
    // Never from inside queue(): the caller is not suspended yet.
    asio::post(
        strand_, [self] { self->written(asio::error::operation_aborted, 0); });
    return;
  }
  limit_write();
  auto then = asio::bind_executor(
      strand_,
      [self](error_code error, size_t size) { self->written(error, size); });
  if (tls_) {
    asio::async_write(*tls_, asio::buffer(sending_bytes_), then);
  } else {
    asio::async_write(socket_, asio::buffer(sending_bytes_), then);
  }
}

void Connection::limit_write() {
  const Limits& limits = shared_->options.limits;
  auto limit = draining_ ? std::min(limits.write_time, limits.drain_write_time)
                         : limits.write_time;
  limit += std::chrono::seconds(sending_bytes_.size() / kSlowestBytesPerSecond);
  write_timer_.expires_after(limit);
  write_timer_.async_wait([self = shared_from_this()](error_code error) {
    if (!error && self->writing_ &&
        self->write_timer_.expiry() <= Clock::now()) {
      self->close_now();
    }
  });
}

void Connection::written(const error_code& error, size_t bytes) {
  write_timer_.cancel();
  last_write_ = Clock::now();
  if (shared_->bytes_sent != nullptr) {
    shared_->bytes_sent->add(double(bytes));
  }
  if (error) {
    write_failed_ = true;
    peer_left();
  }
  for (Output& output : std::exchange(sending_, {})) {
    if (output.done) {
      output.done(!error);
    }
  }
  if (!waiting_.empty()) {
    write_next();
    return;
  }
  writing_ = false;
  handler_timer_.cancel();
}

void Connection::ping_later() {
  auto interval = shared_->options.ping_interval;
  if (interval.count() <= 0) {
    return;
  }
  ping_timer_.expires_at(
      std::max(last_write_, Clock::now() - interval / 2) + interval);
  ping_timer_.async_wait([self = shared_from_this(),
                          interval,
                          exchange = current_](error_code error) {
    if (error || self->current_ != exchange || !exchange->response.events() ||
        self->write_failed_ || self->closed_) {
      return;
    }
    if (!self->writing_ && Clock::now() >= self->last_write_ + interval) {
      std::string ping = ": ping\n\n";
      self->queue(exchange->chunked ? chunk(ping) : ping);
    }
    self->ping_later();
  });
}

void Connection::peer_left() {
  ended_ = true;
  input_timer_.cancel();
  reader_timer_.cancel();
  if (current_ != nullptr) {
    current_->response.cancel();
  }
}

void Connection::close_now() {
  closed_ = true;
  error_code ignored;
  socket_.close(ignored);
  peer_left();
}

}  // namespace mlxcel::http
