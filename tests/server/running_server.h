// A server as a user starts it, and a client that reads whole answers.
#pragma once

#include "support/programs/run_program.h"

#include <nlohmann/json.hpp>

#include <map>
#include <string>
#include <vector>

namespace mlxcel::testing {

struct Answer {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;

  nlohmann::json json() const {
    return nlohmann::json::parse(body);
  }
  // The data of each event of a stream, "[DONE]" too.
  std::vector<std::string> events() const;
};

class RunningServer {
 public:
  // `mlxcel serve --model MODEL --port 0 FLAGS`. Throws when it ends at once.
  RunningServer(
      const std::string& model, const std::vector<std::string>& flags = {});
  ~RunningServer();  // SIGTERM, and waits
  RunningServer(const RunningServer&) = delete;
  RunningServer& operator=(const RunningServer&) = delete;

  Answer get(const std::string& path) const;
  Answer get_at(int port, const std::string& path) const;
  Answer post(const std::string& path, const nlohmann::json& body) const;
  Answer send(
      const std::string& method,
      const std::string& path,
      const std::string& body) const;
  // Sends a request, reads this many bytes of the answer and leaves.
  void abandon(
      const std::string& path, const nlohmann::json& body, size_t bytes) const;
  // Sends the signal and waits; the exit code, 128 and the signal when one
  // ended it.
  int end(int signal);
  std::string log() const;
  int process() const {
    return process_;
  }

 private:
  int connect_to(int port) const;
  Answer send_to(
      int port,
      const std::string& method,
      const std::string& path,
      const std::string& body) const;
  TemporaryFolder folder_;
  int process_ = -1;
  int port_ = 0;
};

}  // namespace mlxcel::testing
