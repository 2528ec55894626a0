// Settings of the HTTP server.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace mlxcel::http {

// What a client may cost before its handler runs, and how long it may stall.
struct Limits {
  size_t body_bytes = size_t(32) << 20;
  size_t header_bytes = size_t(64) << 10;
  int connections = 4096;
  std::chrono::milliseconds header_time{10'000};  // first byte to last header
  std::chrono::milliseconds body_time{120'000};   // the whole body
  std::chrono::milliseconds idle_time{75'000};    // between requests
  std::chrono::milliseconds write_time{60'000};   // a piece that is not read
  std::chrono::milliseconds drain_write_time{5'000};  // the same in a drain
  std::chrono::milliseconds request_time{
      3'600'000};  // the handler; 0: no limit
};

// Which web pages of other origins may call. "*" allows all; without a list,
// those of this machine (localhost, 127.0.0.1, [::1], any port).
struct Cors {
  std::vector<std::string> origins;
  std::string headers = "*";  // what preflight answers allow
  std::string methods;        // the same; empty: those of the path
  bool credentials = false;
  int max_age = 86400;  // seconds that a browser keeps a preflight answer
};

struct Tls {
  std::filesystem::path cert_file;  // PEM, the chain; empty: no TLS
  std::filesystem::path key_file;   // PEM
};

enum class LogFormat { off, text, json };

struct Options {
  std::string host = "127.0.0.1";  // ending in .sock: a unix socket
  uint16_t port = 8080;            // 0: one that is free
  bool reuse_port = false;         // share the port with other processes
  std::string prefix;              // "/llm": before every path
  std::vector<std::string> api_keys;
  Tls tls;
  Cors cors;
  Limits limits;
  int threads = 2;
  bool handle_signals = true;  // SIGINT and SIGTERM drain and stop
  std::chrono::milliseconds ping_interval{30'000};  // 0: none
  LogFormat access_log = LogFormat::text;
};

// One key a line; blank lines are skipped. Throws UsageError.
std::vector<std::string> read_key_file(const std::filesystem::path& path);

}  // namespace mlxcel::http
