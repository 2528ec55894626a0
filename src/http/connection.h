// What the server's threads share, and one client's connection.
#pragma once

#include "http/asio.h"
#include "http/metrics.h"
#include "http/options.h"
#include "http/router.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

namespace mlxcel::http {

class Connection;

struct Shared {
  Shared(Options settings, const Router& routes, Registry* metrics);

  Options options;
  const Router& router;
  asio::io_context context;
  asio::thread_pool blocking;  // for background()
  std::optional<asio::ssl::context> tls;
  std::atomic<bool> draining{false}, stopping{false};

  // Figures of the transport; null without a registry.
  Registry* registry = nullptr;
  Gauge* open_connections = nullptr;
  Gauge* running_requests = nullptr;
  Counter* bytes_sent = nullptr;

  // Connections that exist, for drain and stop.
  void add(Connection* connection);
  void remove(Connection* connection);  // calls when_empty after the last
  std::vector<std::shared_ptr<Connection>> connections();
  int connection_count();
  std::function<void()> when_empty;

 private:
  std::mutex mutex_;
  std::unordered_set<Connection*> connections_;
};

// One request at a time, in the order they came; further ones wait in the
// input. A reader runs all the while, so that a client's leaving shows at
// once. All but post() and post_blocking() runs on the connection's strand.
class Connection final : public Transport,
                         public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::shared_ptr<Shared> shared, Socket socket, std::string peer);
  ~Connection() override;

  void start();
  // From any thread: closes after the request that runs; at once where none has
  // arrived as a whole.
  void drain();
  // From any thread: cancels the request and closes.
  void stop();

  void post(std::function<void()> work) override;
  void post_blocking(std::function<void()> work) override;
  void begin_stream() override;
  void write(std::string piece, std::function<void(bool)> done) override;

 private:
  struct Exchange;  // a request and its answer
  enum class Input { data, ended, late };

  awaitable<void> run();
  awaitable<bool> handshake();
  awaitable<void> read_all();
  awaitable<Input> more_input(Clock::time_point deadline);
  awaitable<bool> serve_one();
  awaitable<bool> read_request(Exchange& exchange);
  awaitable<void> handle(Exchange& exchange);
  awaitable<void> finish(Exchange& exchange);
  awaitable<void> close();

  // False: the answer is there already, an error or a preflight's.
  bool accept_head(Exchange& exchange);
  bool accept_origin(
      Exchange& exchange, const std::vector<std::string>& allowed);
  void reject(Exchange& exchange, const Failure& failure);
  void settle(Exchange& exchange);
  std::string head_of(Exchange& exchange, std::optional<size_t> length);
  void report(const Exchange& exchange);

  void queue(std::string bytes, std::function<void(bool)> done = {});
  void write_next();
  void limit_write();  // the time that the bytes on their way may take
  void written(const error_code& error, size_t bytes);
  void ping_later();
  void peer_left();
  void consume(size_t size);  // of the input
  void close_now();

  std::shared_ptr<Shared> shared_;
  Strand strand_;
  Socket socket_;
  std::optional<asio::ssl::stream<Socket&>> tls_;
  std::string peer_;
  asio::steady_timer input_timer_, reader_timer_, handler_timer_;
  asio::steady_timer write_timer_, ping_timer_;

  std::string input_;  // what came and was not parsed
  bool reading_ = false;
  bool ended_ = false;     // no more input will come
  bool receiving_ = true;  // no request is there as a whole
  bool draining_ = false;  // close after this request
  bool discard_ = false;   // closing: input is thrown away
  bool closed_ = false;

  struct Output {
    std::string bytes;
    std::function<void(bool)> done;
  };
  std::vector<Output> waiting_, sending_;
  std::string sending_bytes_;
  bool writing_ = false;
  bool write_failed_ = false;
  Clock::time_point last_write_;

  Exchange* current_ = nullptr;
};

}  // namespace mlxcel::http
