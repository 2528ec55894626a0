// Accepts connections and runs handlers on a few threads.
#pragma once

#include "http/metrics.h"
#include "http/options.h"
#include "http/router.h"

#include <functional>
#include <memory>
#include <string>

namespace mlxcel::http {

// Of so many connections, those that the limit on open files allows, which is
// raised as far as this process may.
int allowed_connections(int wanted);

class Server {
 public:
  // The router must live as long as the server. With a registry, the server
  // keeps its own figures there (mlxcel_http_*).
  Server(Options options, const Router& router, Registry* metrics = nullptr);
  ~Server();

  // Takes the address without accepting connections on it yet, and reads the
  // certificates: what is wrong with either shows before a model is loaded.
  // Throws UsageError, also when the address is in use.
  void bind();
  // "http://127.0.0.1:8080"; after bind().
  std::string url() const;
  uint16_t port() const;

  // From here on clients can connect, and signals count; both are answered once
  // run() is called. Binds first if nobody has.
  void listen();

  // Accepts and serves until stopped; listens first if nobody has. The first
  // SIGINT or SIGTERM drains: no new connections, running requests end. The
  // second cancels what runs. Returns when all handlers have returned.
  void run();

  // From any thread and more than once: as the first, and as the second signal.
  void drain();
  void stop();

  // Called when draining begins, on one of the server's threads; before run().
  void on_drain(std::function<void()> callback);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace mlxcel::http
