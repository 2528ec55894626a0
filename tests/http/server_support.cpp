#include "server_support.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstring>

namespace mlxcel::http {

namespace {

constexpr int kPatience = 20;  // seconds

void set_patience(int socket) {
  timeval limit{kPatience, 0};
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

std::string lower(std::string text) {
  for (char& c : text) {
    c = char(std::tolower((unsigned char)c));
  }
  return text;
}

}  // namespace

Client::Client(uint16_t port, bool tls) {
  socket_ = ::socket(AF_INET, SOCK_STREAM, 0);
  set_patience(socket_);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket_, (sockaddr*)&address, sizeof(address)) != 0) {
    close();
    return;
  }
  if (tls) {
    context_ = SSL_CTX_new(TLS_client_method());
    tls_ = SSL_new(context_);
    SSL_set_fd(tls_, socket_);
    if (SSL_connect(tls_) != 1) {
      close();
    }
  }
}

Client::Client(const std::string& socket_path) {
  socket_ = ::socket(AF_UNIX, SOCK_STREAM, 0);
  set_patience(socket_);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(
      address.sun_path, socket_path.c_str(), sizeof(address.sun_path) - 1);
  if (::connect(socket_, (sockaddr*)&address, sizeof(address)) != 0) {
    close();
  }
}

Client::~Client() {
  close();
}

void Client::close() {
  if (tls_ != nullptr) {
    SSL_free(tls_);
    tls_ = nullptr;
  }
  if (context_ != nullptr) {
    SSL_CTX_free(context_);
    context_ = nullptr;
  }
  if (socket_ >= 0) {
    ::close(socket_);
    socket_ = -1;
  }
}

void Client::close_sending() {
  ::shutdown(socket_, SHUT_WR);
}

void Client::send(std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t sent =
        tls_ != nullptr
            ? SSL_write(tls_, bytes.data(), int(bytes.size()))
            : ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) {
      return;  // the server has closed; what it answered is still to read
    }
    bytes.remove_prefix(size_t(sent));
  }
}

void Client::request(
    std::string_view method,
    std::string_view path,
    std::string_view body,
    const std::vector<std::string>& lines) {
  std::string text =
      fmt::format("{} {} HTTP/1.1\r\nHost: test\r\n", method, path);
  for (const std::string& line : lines) {
    text += line + "\r\n";
  }
  if (!body.empty()) {
    text += fmt::format("Content-Length: {}\r\n", body.size());
  }
  send(text + "\r\n" + std::string(body));
}

bool Client::fill() {
  char buffer[65536];
  ssize_t size = tls_ != nullptr ? SSL_read(tls_, buffer, sizeof(buffer))
                                 : ::recv(socket_, buffer, sizeof(buffer), 0);
  if (size <= 0) {
    return false;
  }
  input_.append(buffer, size_t(size));
  return true;
}

std::string Client::take(size_t size) {
  while (input_.size() < size && fill()) {
  }
  std::string out = input_.substr(0, size);
  input_.erase(0, out.size());
  return out;
}

std::string Client::read_until(std::string_view end) {
  size_t at;
  while ((at = input_.find(end)) == std::string::npos) {
    if (!fill()) {
      ADD_FAILURE() << "no \"" << end << "\" in \"" << input_ << "\"";
      return std::exchange(input_, {});
    }
  }
  return take(at + end.size());
}

bool Client::at_end() {
  return input_.empty() && !fill();
}

Answer Client::read(bool head_only) {
  Answer answer;
  do {
    std::string head = read_until("\r\n\r\n");
    answer.headers.clear();
    answer.status = head.size() > 12 ? std::atoi(head.c_str() + 9) : 0;
    for (size_t at = head.find("\r\n") + 2; at + 2 < head.size();) {
      size_t end = head.find("\r\n", at);
      size_t colon = head.find(": ", at);
      answer.headers[lower(head.substr(at, colon - at))] =
          head.substr(colon + 2, end - colon - 2);
      at = end + 2;
    }
  } while (answer.status == 100);
  if (head_only || answer.status == 204) {
    answer.whole = true;
  } else if (answer.headers.contains("content-length")) {
    size_t size = std::stoul(answer.headers["content-length"]);
    answer.body = take(size);
    answer.whole = answer.body.size() == size;
  } else if (answer.headers.contains("transfer-encoding")) {
    while (!answer.whole) {
      while (input_.find("\r\n") == std::string::npos) {
        if (!fill()) {
          return answer;
        }
      }
      size_t size = std::stoul(read_until("\r\n"), nullptr, 16);
      std::string chunk = take(size + 2);
      answer.whole = size == 0;
      if (size > 0) {
        answer.chunks.push_back(chunk.substr(0, size));
        answer.body += answer.chunks.back();
      }
    }
  } else {
    while (fill()) {
    }
    answer.body = std::exchange(input_, {});
    answer.whole = true;
  }
  return answer;
}

TestServer::TestServer(Options options) {
  previous_sink_ = set_log_sink([this](LogLevel, std::string_view line) {
    std::lock_guard lock(mutex_);
    lines_.emplace_back(line);
  });
  add_routes();
  add_streams();
  options.port = 0;
  server_ = std::make_unique<Server>(std::move(options), router_, &registry_);
  server_->bind();
  running_ = true;
  thread_ = std::thread([this] {
    server_->run();
    running_ = false;
  });
  bool is_unix = server_->url().find("+unix:") != std::string::npos;
  if (!is_unix) {
    EXPECT_TRUE(eventually([&] { return Client(port()).connected(); }));
  }
}

TestServer::~TestServer() {
  server_->stop();
  release();
  join();
  set_log_sink(previous_sink_);
}

void TestServer::join() {
  if (thread_.joinable()) {
    thread_.join();
  }
}

void TestServer::release() {
  std::lock_guard lock(mutex_);
  for (auto& box : std::exchange(waiting_, {})) {
    box->push(1);
  }
}

std::vector<std::string> TestServer::log_lines() {
  std::lock_guard lock(mutex_);
  return lines_;
}

bool TestServer::eventually(const std::function<bool()>& condition) {
  auto end = std::chrono::steady_clock::now() + std::chrono::seconds(kPatience);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

void TestServer::add_routes() {
  auto simple = [this](
                    const char* method,
                    const char* path,
                    ErrorStyle style,
                    std::function<void(const Request&, Response&)> handler) {
    Route route;
    route.method = method;
    route.path = path;
    route.style = style;
    route.handler = immediate(std::move(handler));
    if (route.path == "/health") {
      route.access = Access::open;
    }
    router_.add(std::move(route));
  };
  using Style = ErrorStyle;
  simple("GET", "/health", Style::native, [](const Request&, Response& r) {
    r.send_json(200, {{"status", "ok"}});
  });
  auto hello = [](const Request& request, Response& response) {
    response.log_field("greeted", request.param("name"));
    response.send_json(
        200,
        {{"hello", request.param("name")},
         {"q", request.query_value("q")},
         {"id", request.trace_id}});
  };
  simple("GET", "/hello/{name}", Style::native, hello);
  simple("POST", "/hello/{name}", Style::native, hello);
  simple("GET", "/hello/special", Style::native, [](auto&, Response& r) {
    r.send(200, "text/plain", "special");
  });
  auto echo = [](const Request& request, Response& response) {
    response.send(200, "application/octet-stream", request.body);
  };
  simple("POST", "/echo", Style::native, echo);
  simple("POST", "/v1/echo", Style::openai, [](auto& request, Response& r) {
    r.send_json(200, parse_body(request.body));
  });
  simple("GET", "/big", Style::native, [](const Request&, Response& r) {
    r.send(200, "text/plain", std::string(size_t(4) << 20, 'x'));
  });
  auto fail = [](const Request&, Response&) {
    throw Failure::bad_request("no such thing", "thing");
  };
  simple("GET", "/fail", Style::native, fail);
  simple("GET", "/v1/fail", Style::openai, fail);
  simple("GET", "/v1/messages", Style::anthropic, fail);
  simple("GET", "/crash", Style::native, [](const Request&, Response&) {
    throw std::runtime_error("secret detail");
  });
  simple("GET", "/nothing", Style::native, [](const Request&, Response&) {});
}

void TestServer::add_streams() {
  auto add = [this](const char* path, Handler handler) {
    Route route;
    route.method = "GET";
    route.path = path;
    route.style = ErrorStyle::openai;
    route.handler = std::move(handler);
    router_.add(std::move(route));
  };
  add("/events", [](const Request&, Response& response) -> Task<> {
    response.start_events();
    for (int i = 0; i < 3; ++i) {
      std::string text = event(fmt::format("{{\"n\":{}}}", i));
      co_await response.write(std::move(text));
    }
  });
  add("/forever", [this](const Request&, Response& response) -> Task<> {
    auto box = response.mailbox<int>();
    response.on_cancel([this] { ++seen_.cancelled; });
    response.start_events();
    co_await response.write(event("begun"));
    ++seen_.started;
    std::optional<int> value = co_await box->next();
    EXPECT_FALSE(value.has_value());
    EXPECT_TRUE(response.cancelled());
  });
  add("/flood", [this](const Request&, Response& response) -> Task<> {
    response.start(200, "text/plain");
    ++seen_.started;
    bool more = true;
    while (more) {
      more = co_await response.write(std::string(size_t(8) << 10, 'y'));
    }
    ++seen_.refused_writes;
  });
  add("/fail-late", [](const Request&, Response& response) -> Task<> {
    response.start_events();
    co_await response.write(event("begun"));
    throw Failure(503, "unavailable_error", "gone");
  });
  add("/wait", [this](const Request&, Response& response) -> Task<> {
    return wait(response);
  });
  add("/background", [](const Request& request, Response& response) -> Task<> {
    bool fails = request.has_query("throw");
    auto work = [fails, here = std::this_thread::get_id()] {
      if (fails) {
        throw Failure::bad_request("thrown elsewhere");
      }
      return std::this_thread::get_id() != here;
    };
    bool elsewhere = co_await background(response.executor(), work);
    response.send_json(200, {{"elsewhere", elsewhere}});
  });
}

Task<> TestServer::wait(Response& response) {
  auto box = response.mailbox<int>();
  {
    std::lock_guard lock(mutex_);
    waiting_.push_back(box);
  }
  ++seen_.started;
  std::optional<int> value = co_await box->next();
  if (value) {
    response.send_json(200, {{"waited", true}});
  } else {
    ++seen_.cancelled;
  }
}

void write_certificate(
    const std::filesystem::path& cert, const std::filesystem::path& key) {
  EVP_PKEY* pair = EVP_EC_gen("P-256");
  X509* x509 = X509_new();
  ASN1_INTEGER_set(X509_get_serialNumber(x509), 1);
  X509_gmtime_adj(X509_getm_notBefore(x509), 0);
  X509_gmtime_adj(X509_getm_notAfter(x509), 3600);
  X509_set_pubkey(x509, pair);
  X509_NAME* name = X509_get_subject_name(x509);
  X509_NAME_add_entry_by_txt(
      name, "CN", MBSTRING_ASC, (const unsigned char*)"localhost", -1, -1, 0);
  X509_set_issuer_name(x509, name);
  X509_sign(x509, pair, EVP_sha256());
  FILE* file = std::fopen(cert.c_str(), "wb");
  PEM_write_X509(file, x509);
  std::fclose(file);
  file = std::fopen(key.c_str(), "wb");
  PEM_write_PrivateKey(file, pair, nullptr, nullptr, 0, nullptr, nullptr);
  std::fclose(file);
  X509_free(x509);
  EVP_PKEY_free(pair);
}

void write_other_key(const std::filesystem::path& key) {
  EVP_PKEY* pair = EVP_RSA_gen(2048);
  FILE* file = std::fopen(key.c_str(), "wb");
  PEM_write_PrivateKey(file, pair, nullptr, nullptr, 0, nullptr, nullptr);
  std::fclose(file);
  EVP_PKEY_free(pair);
}

}  // namespace mlxcel::http
