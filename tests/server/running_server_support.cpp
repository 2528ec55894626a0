#include "server/running_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <thread>

extern char** environ;

namespace mlxcel::testing {

RunningServer::RunningServer(
    const std::string& model, const std::vector<std::string>& flags) {
  std::vector<std::string> words = {
      MLXCEL_TEST_PROGRAM, "serve", "--model", model, "--port", "0"};
  words.insert(words.end(), flags.begin(), flags.end());
  std::vector<char*> argv;
  for (std::string& word : words) {
    argv.push_back(word.data());
  }
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  std::string file = folder_.path("log");
  posix_spawn_file_actions_addopen(
      &actions, 2, file.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  posix_spawn_file_actions_adddup2(&actions, 2, 1);
  int failed =
      posix_spawn(&process_, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) {
    throw std::runtime_error("cannot start the server");
  }
  const std::string mark = "http://127.0.0.1:";
  for (;;) {
    std::string text = log();
    size_t place = text.find(mark);
    if (place != std::string::npos && text.find('\n', place) != text.npos) {
      port_ = std::stoi(text.substr(place + mark.size()));
      return;
    }
    int status = 0;
    if (waitpid(process_, &status, WNOHANG) == process_) {
      process_ = -1;
      throw std::runtime_error("the server ended: " + log());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

RunningServer::~RunningServer() {
  if (process_ > 0) {
    kill(process_, SIGTERM);
    waitpid(process_, nullptr, 0);
  }
}

int RunningServer::end(int signal) {
  int status = 0;
  kill(process_, signal);
  waitpid(process_, &status, 0);
  process_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string RunningServer::log() const {
  std::ifstream file(folder_.path("log"));
  return {std::istreambuf_iterator<char>(file), {}};
}

int RunningServer::connect_to(int port) const {
  int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(uint16_t(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) !=
      0) {
    close(socket);
    throw std::runtime_error("cannot connect: " + log());
  }
  return socket;
}

namespace {

void write_all(int socket, const std::string& text) {
  size_t sent = 0;
  while (sent < text.size()) {
    ssize_t count =
        ::send(socket, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (count <= 0) {
      return;  // the server may answer and close before it has read all
    }
    sent += size_t(count);
  }
}

std::string request_text(
    const std::string& method,
    const std::string& path,
    const std::string& body) {
  return method + " " + path +
         " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
         "Content-Type: application/json\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

// Pieces of "<hex size>\r\n<bytes>\r\n".
std::string unchunked(const std::string& text) {
  std::string out;
  size_t at = 0;
  while (at < text.size()) {
    size_t line = text.find("\r\n", at);
    size_t size = std::stoul(text.substr(at, line - at), nullptr, 16);
    out += text.substr(line + 2, size);
    at = line + 2 + size + 2;
  }
  return out;
}

}  // namespace

Answer RunningServer::send(
    const std::string& method,
    const std::string& path,
    const std::string& body) const {
  return send_to(port_, method, path, body);
}

Answer RunningServer::get_at(int port, const std::string& path) const {
  return send_to(port, "GET", path, "");
}

Answer RunningServer::send_to(
    int port,
    const std::string& method,
    const std::string& path,
    const std::string& body) const {
  int socket = connect_to(port);
  write_all(socket, request_text(method, path, body));
  std::string raw;
  char buffer[65536];
  for (ssize_t count; (count = recv(socket, buffer, sizeof buffer, 0)) > 0;) {
    raw.append(buffer, size_t(count));
  }
  close(socket);
  Answer answer;
  size_t head = raw.find("\r\n\r\n");
  if (head == std::string::npos) {
    throw std::runtime_error("no answer to " + path + ": " + log());
  }
  answer.status = std::stoi(raw.substr(raw.find(' ')));
  size_t at = raw.find("\r\n") + 2;
  while (at < head) {
    size_t end = raw.find("\r\n", at);
    std::string line = raw.substr(at, end - at);
    std::string name = line.substr(0, line.find(':'));
    std::transform(name.begin(), name.end(), name.begin(), ::tolower);
    size_t value = line.find_first_not_of(' ', line.find(':') + 1);
    answer.headers[name] = value == line.npos ? "" : line.substr(value);
    at = end + 2;
  }
  answer.body = raw.substr(head + 4);
  if (answer.headers["transfer-encoding"] == "chunked") {
    answer.body = unchunked(answer.body);
  }
  return answer;
}

Answer RunningServer::get(const std::string& path) const {
  return send("GET", path, "");
}

Answer RunningServer::post(
    const std::string& path, const nlohmann::json& body) const {
  return send("POST", path, body.dump());
}

void RunningServer::abandon(
    const std::string& path, const nlohmann::json& body, size_t bytes) const {
  int socket = connect_to(port_);
  write_all(socket, request_text("POST", path, body.dump()));
  std::string raw;
  char buffer[256];
  while (raw.size() < bytes) {
    ssize_t count = recv(socket, buffer, sizeof buffer, 0);
    if (count <= 0) {
      break;
    }
    raw.append(buffer, size_t(count));
  }
  close(socket);
}

std::vector<std::string> Answer::events() const {
  std::vector<std::string> out;
  size_t at = 0;
  while (at < body.size()) {
    size_t end = std::min(body.find("\n\n", at), body.size());
    std::string event = body.substr(at, end - at);
    if (event.starts_with("data: ")) {
      out.push_back(event.substr(6));
    }
    at = end + 2;
  }
  return out;
}

}  // namespace mlxcel::testing
