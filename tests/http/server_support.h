// A server in this process and clients that speak to it byte by byte.
#pragma once

#include "core/log.h"
#include "http/server.h"

#include <fmt/format.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

struct ssl_st;
struct ssl_ctx_st;

namespace mlxcel::http {

struct Answer {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // chunks joined
  std::vector<std::string> chunks;
  bool whole = false;  // ended as its head said it would

  nlohmann::json json() const {
    return nlohmann::json::parse(body);
  }
};

// A connection. Reads fail after some seconds, so that a fault is no hang.
class Client {
 public:
  explicit Client(uint16_t port, bool tls = false);
  explicit Client(const std::string& socket_path);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  bool connected() const {
    return socket_ >= 0;
  }
  void send(std::string_view bytes);
  // "GET /x HTTP/1.1" with Host, the further header lines and the body.
  void request(
      std::string_view method,
      std::string_view path,
      std::string_view body = {},
      const std::vector<std::string>& lines = {});
  Answer read(bool head_only = false);
  Answer call(
      std::string_view method,
      std::string_view path,
      std::string_view body = {},
      const std::vector<std::string>& lines = {}) {
    request(method, path, body, lines);
    return read(method == "HEAD");
  }
  // Reads until these bytes have come; all that came up to their end.
  std::string read_until(std::string_view end);
  // True when the server has closed and nothing is left to read.
  bool at_end();
  void close_sending();
  void close();  // leaves without a word

 private:
  bool fill();
  std::string take(size_t size);

  int socket_ = -1;
  ssl_ctx_st* context_ = nullptr;
  ssl_st* tls_ = nullptr;
  std::string input_;
};

// What the routes below have seen.
struct Seen {
  std::atomic<int> started{0}, cancelled{0}, refused_writes{0};
};

// Serves on a free port with routes that show each behaviour:
//   GET /health                 open, all others need a key
//   GET /hello/{name}           {"hello": name}; POST /hello/{name} too
//   POST /echo                  the body; /v1/echo with OpenAI's errors
//   GET /events                 three events
//   GET /forever                a stream that ends when it is cancelled
//   GET /flood                  writes until the client is gone
//   GET /wait                   answers once release() was called
//   GET /big                    four megabytes
//   GET /fail, /v1/fail, /v1/messages, /fail-late, /nothing
//   GET /background             work off the thread, which throws with ?throw
class TestServer {
 public:
  explicit TestServer(Options options = {});
  ~TestServer();
  TestServer(const TestServer&) = delete;
  TestServer& operator=(const TestServer&) = delete;

  uint16_t port() const {
    return server_->port();
  }
  Server& server() {
    return *server_;
  }
  Registry& metrics() {
    return registry_;
  }
  Seen& seen() {
    return seen_;
  }
  void release();  // lets /wait answer
  void join();     // until run() has returned
  bool running() const {
    return running_;
  }
  // Lines of the access log so far.
  std::vector<std::string> log_lines();
  // Waits until the condition holds, at most some seconds.
  static bool eventually(const std::function<bool()>& condition);

 private:
  void add_routes();
  void add_streams();
  Task<> wait(Response& response);

  Router router_;
  Registry registry_;
  Seen seen_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Mailbox<int>>> waiting_;
  std::vector<std::string> lines_;
  LogSink previous_sink_;
  std::unique_ptr<Server> server_;
  std::atomic<bool> running_{false};
  std::thread thread_;
};

// Writes a self-signed certificate and its key; fresh on each call.
void write_certificate(
    const std::filesystem::path& cert, const std::filesystem::path& key);
// A key of another kind than those of write_certificate.
void write_other_key(const std::filesystem::path& key);

}  // namespace mlxcel::http
