#include "http/server.h"

#include "core/error.h"
#include "core/log.h"
#include "http/connection.h"

#include <netinet/tcp.h>
#include <openssl/err.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

namespace mlxcel::http {

namespace {

using Tcp = asio::ip::tcp;
using Protocol = asio::generic::stream_protocol;
using Acceptor = asio::basic_socket_acceptor<Protocol>;
// A port that several processes share; asio has no name for it.
using ReusePort =
    asio::detail::socket_option::boolean<SOL_SOCKET, SO_REUSEPORT>;

constexpr int kBacklog = 512;
constexpr std::chrono::milliseconds kAcceptPause{100};

bool is_unix(const std::string& host) {
  return host.ends_with(".sock");
}

Error cannot_listen(const std::string& where, const std::string& why) {
  return Error(
      cat("cannot listen on ", where),
      why,
      "choose another --host or --port, or stop the program that uses it");
}

std::string show(const std::string& host, uint16_t port) {
  bool v6 = host.find(':') != std::string::npos && !host.starts_with('[');
  return v6 ? cat("[", host, "]:", port) : cat(host, ":", port);
}

std::string name_of(const Protocol::endpoint& endpoint) {
  int family = endpoint.protocol().family();
  if (family != AF_INET && family != AF_INET6) {
    return "unix";
  }
  Tcp::endpoint tcp;
  tcp.resize(endpoint.size());
  std::memcpy(tcp.data(), endpoint.data(), endpoint.size());
  return show(tcp.address().to_string(), tcp.port());
}

// A client whose machine has gone says nothing any more: without probes its
// connection, and what it asked for, would stay until a write fails.
void watch_peer(int socket) {
  auto set = [socket](int level, int option, int value) {
    ::setsockopt(socket, level, option, &value, sizeof value);
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
#ifdef TCP_KEEPIDLE
  set(IPPROTO_TCP, TCP_KEEPIDLE, 30);   // seconds
  set(IPPROTO_TCP, TCP_KEEPINTVL, 10);  // seconds
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
#endif
#ifdef TCP_USER_TIMEOUT
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 60'000);  // ms that bytes go unconfirmed
#endif
}

void require_file(const std::filesystem::path& path, const char* option) {
  if (::access(path.c_str(), R_OK) != 0) {
    throw UsageError(
        cat("cannot read ", path.string()),
        std::error_code(errno, std::generic_category()).message(),
        cat("give ", option, " a PEM file"));
  }
}

// The reason that OpenSSL has queued, without its codes.
std::string tls_reason(const error_code& error) {
  const char* reason =
      ERR_reason_error_string(static_cast<unsigned long>(error.value()));
  return reason != nullptr ? reason : error.message();
}

void set_up_tls(std::optional<asio::ssl::context>& context, const Tls& tls) {
  if (tls.cert_file.empty() != tls.key_file.empty()) {
    throw UsageError(
        "TLS needs a certificate and its key",
        cat(tls.cert_file.empty() ? "--ssl-cert-file" : "--ssl-key-file",
            " is missing"),
        "give both --ssl-cert-file and --ssl-key-file");
  }
  if (tls.cert_file.empty()) {
    return;
  }
  require_file(tls.cert_file, "--ssl-cert-file");
  require_file(tls.key_file, "--ssl-key-file");
  context.emplace(asio::ssl::context::tls_server);
  SSL_CTX_set_min_proto_version(context->native_handle(), TLS1_2_VERSION);
  context->set_options(
      asio::ssl::context::no_compression | SSL_OP_NO_RENEGOTIATION);
  error_code error;
  context->use_certificate_chain_file(tls.cert_file.string(), error);
  if (error) {
    throw UsageError(
        cat(tls.cert_file.string(), " is no certificate chain"),
        tls_reason(error),
        "give --ssl-cert-file a PEM file, leaf first");
  }
  context->use_private_key_file(
      tls.key_file.string(), asio::ssl::context::pem, error);
  if (error) {
    throw UsageError(
        cat("the key ",
            tls.key_file.string(),
            " does not fit ",
            tls.cert_file.string()),
        tls_reason(error),
        "give --ssl-key-file the certificate's key, without a passphrase");
  }
  // Loading compares keys of the certificate's own kind only.
  if (SSL_CTX_check_private_key(context->native_handle()) != 1) {
    ERR_clear_error();
    throw UsageError(
        cat("the key ",
            tls.key_file.string(),
            " does not fit ",
            tls.cert_file.string()),
        "it is of another kind than the certificate's key",
        "give --ssl-key-file the certificate's key");
  }
}

}  // namespace

int allowed_connections(int wanted) {
  // What a server opens beside connections: weights, adapters, logs.
  constexpr rlim_t kOtherFiles = 64;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return wanted;
  }
  rlim_t needed = rlim_t(wanted) + kOtherFiles;
  if (limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < needed) {
    rlimit more = limit;
    more.rlim_cur = limit.rlim_max == RLIM_INFINITY
                        ? needed
                        : std::min(needed, limit.rlim_max);
    if (::setrlimit(RLIMIT_NOFILE, &more) == 0) {
      limit = more;
    }
  }
  if (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= needed) {
    return wanted;
  }
  return std::max(
      1, int(limit.rlim_cur) - int(std::min(kOtherFiles, limit.rlim_cur / 2)));
}

struct Server::State {
  State(Options settings, const Router& router, Registry* metrics)
      : shared(std::make_shared<Shared>(std::move(settings), router, metrics)),
        control(asio::make_strand(shared->context)),
        signals(control) {}

  void bind();
  void bind_unix();
  void bind_tcp();
  bool try_bind(const Tcp::endpoint& endpoint, bool only_v6, error_code& error);
  void listen_unix();
  void listen();
  void run();
  awaitable<void> accept_all(Acceptor& acceptor);
  void await_signal();
  void drain();
  void stop();

  std::shared_ptr<Shared> shared;
  Strand control;  // on which the acceptors and the signals are used
  std::vector<std::unique_ptr<Acceptor>> acceptors;
  asio::signal_set signals;
  bool finished = false;  // drained, and no connection is left
  std::function<void()> on_drain;
  uint16_t port = 0;
  bool bound = false;
  bool listening = false;
  // Of the unix socket that we made, so that only our own is removed.
  std::optional<std::pair<dev_t, ino_t>> socket_file;
};

void Server::State::bind() {
  if (bound) {
    return;
  }
  const Options& options = shared->options;
  set_up_tls(shared->tls, options.tls);
  if (is_unix(options.host)) {
    bind_unix();
  } else {
    bind_tcp();
  }
  bound = true;
}

// Only checks: a socket file that nobody listens on yet would look stale to
// another process, so it is made when serving begins.
void Server::State::bind_unix() {
  const std::string& path = shared->options.host;
  if (path.size() >= sizeof(sockaddr_un{}.sun_path)) {
    throw cannot_listen(
        path,
        cat("a unix socket's path has at most ",
            sizeof(sockaddr_un{}.sun_path) - 1,
            " bytes"));
  }
  struct stat info{};
  if (::lstat(path.c_str(), &info) != 0) {
    std::filesystem::path folder = std::filesystem::path(path).parent_path();
    if (!folder.empty() && !std::filesystem::is_directory(folder)) {
      throw cannot_listen(path, cat("there is no folder ", folder.string()));
    }
    return;
  }
  if (!S_ISSOCK(info.st_mode)) {
    throw cannot_listen(path, "a file that is no socket is there");
  }
  asio::io_context context;
  asio::local::stream_protocol::socket probe(context);
  error_code error;
  probe.connect(asio::local::stream_protocol::endpoint(path), error);
  if (!error) {
    throw cannot_listen(path, "another program listens on this socket");
  }
}

void Server::State::listen_unix() {
  const std::string& path = shared->options.host;
  bind_unix();
  ::unlink(path.c_str());  // stale, or not there
  error_code error;
  auto acceptor = std::make_unique<Acceptor>(shared->context);
  asio::local::stream_protocol::endpoint endpoint(path);
  acceptor->open(Protocol(AF_UNIX, 0), error);
  if (!error) {
    acceptor->bind(endpoint, error);
  }
  if (!error) {
    struct stat info{};
    if (::lstat(path.c_str(), &info) == 0) {
      socket_file.emplace(info.st_dev, info.st_ino);
    }
    acceptor->listen(kBacklog, error);
  }
  if (error) {
    throw cannot_listen(path, error.message());
  }
  acceptors.push_back(std::move(acceptor));
}

bool Server::State::try_bind(
    const Tcp::endpoint& endpoint, bool only_v6, error_code& error) {
  auto acceptor = std::make_unique<Acceptor>(shared->context);
  acceptor->open(endpoint.protocol(), error);
  if (!error && endpoint.address().is_v6()) {
    acceptor->set_option(asio::ip::v6_only(only_v6), error);
  }
  if (!error) {
    acceptor->set_option(Acceptor::reuse_address(true), error);
  }
  if (!error && shared->options.reuse_port) {
    acceptor->set_option(ReusePort(true), error);
  }
  if (!error) {
    acceptor->bind(endpoint, error);
  }
  if (error) {
    return false;
  }
  Tcp::endpoint bound_to;
  Protocol::endpoint local = acceptor->local_endpoint(error);
  bound_to.resize(local.size());
  std::memcpy(bound_to.data(), local.data(), local.size());
  port = bound_to.port();
  acceptors.push_back(std::move(acceptor));
  return true;
}

void Server::State::bind_tcp() {
  const Options& options = shared->options;
  std::string host = options.host;
  if (host.starts_with('[') && host.ends_with(']')) {
    host = host.substr(1, host.size() - 2);
  }
  error_code error;
  Tcp::resolver resolver(shared->context);
  auto found = resolver.resolve(
      host, std::to_string(options.port), Tcp::resolver::passive, error);
  if (error || found.empty()) {
    throw cannot_listen(
        show(host, options.port),
        cat("the host is unknown: ", error.message()));
  }
  // "localhost" is often both ::1 and 127.0.0.1. One of them must do; an
  // address that is in use is an error all the same.
  bool several = found.size() > 1;
  for (const auto& entry : found) {
    Tcp::endpoint endpoint = entry.endpoint();
    endpoint.port(acceptors.empty() ? options.port : port);
    error_code failed;
    if (!try_bind(endpoint, several, failed)) {
      error = failed;
      if (failed == asio::error::address_in_use) {
        break;
      }
    }
  }
  if (acceptors.empty() || error == asio::error::address_in_use) {
    acceptors.clear();
    throw cannot_listen(show(host, options.port), error.message());
  }
}

void Server::State::listen() {
  if (listening) {
    return;
  }
  bind();
  // Before a client can see us: whoever finds the socket may also stop us.
  if (shared->options.handle_signals) {
    signals.add(SIGINT);
    signals.add(SIGTERM);
  }
  std::signal(SIGPIPE, SIG_IGN);
  if (is_unix(shared->options.host)) {
    listen_unix();
  }
  for (auto& acceptor : acceptors) {
    error_code error;
    acceptor->listen(kBacklog, error);
    if (error) {
      throw cannot_listen(show(shared->options.host, port), error.message());
    }
  }
  listening = true;
}

void Server::State::run() {
  listen();
  shared->options.limits.connections =
      allowed_connections(shared->options.limits.connections);
  // The threads are kept by an operation that waits for signals; it ends with
  // the last connection of a drain.
  shared->when_empty = [this] {
    asio::post(control, [this] {
      finished = true;
      signals.cancel();
    });
  };
  await_signal();
  for (auto& acceptor : acceptors) {
    asio::co_spawn(control, accept_all(*acceptor), asio::detached);
  }
  std::vector<std::thread> threads;
  for (int i = 1; i < shared->options.threads; ++i) {
    threads.emplace_back([this] { shared->context.run(); });
  }
  shared->context.run();
  for (std::thread& thread : threads) {
    thread.join();
  }
  shared->blocking.join();
  if (socket_file) {
    const std::string& path = shared->options.host;
    struct stat info{};
    if (::lstat(path.c_str(), &info) == 0 &&
        std::pair(info.st_dev, info.st_ino) == *socket_file) {
      ::unlink(path.c_str());
    }
  }
}

awaitable<void> Server::State::accept_all(Acceptor& acceptor) {
  asio::steady_timer pause(control);
  while (acceptor.is_open() && !shared->draining) {
    Protocol::endpoint peer;
    auto [error, socket] = co_await acceptor.async_accept(peer, kResult);
    if (error == asio::error::operation_aborted || shared->draining) {
      break;
    }
    if (error) {  // out of descriptors, mostly: some will be free again
      pause.expires_after(kAcceptPause);
      co_await pause.async_wait(kResult);
      continue;
    }
    std::string name = name_of(peer);
    if (name != "unix") {
      error_code ignored;
      socket.set_option(Tcp::no_delay(true), ignored);
      watch_peer(socket.native_handle());
    }
    auto connection = std::make_shared<Connection>(
        shared, std::move(socket), std::move(name));
    connection->start();
    // Whoever drains or stops has missed it, or has set the flag by now.
    if (shared->stopping) {
      connection->stop();
    } else if (shared->draining) {
      connection->drain();
    }
    while (shared->connection_count() >= shared->options.limits.connections &&
           !shared->draining) {
      pause.expires_after(kAcceptPause);
      co_await pause.async_wait(kResult);
    }
  }
}

void Server::State::await_signal() {
  signals.async_wait([this](error_code error, int) {
    if (error || finished) {
      return;
    }
    if (shared->draining) {
      log_info("stopping at once");
      stop();
    } else {
      log_info("draining: running requests end, new ones are refused");
      drain();
    }
    await_signal();
  });
}

void Server::State::drain() {
  if (shared->draining.exchange(true)) {
    return;
  }
  asio::post(control, [this] {
    for (auto& acceptor : acceptors) {
      error_code ignored;
      acceptor->close(ignored);
    }
    if (on_drain) {
      on_drain();
    }
    auto open = shared->connections();
    for (auto& connection : open) {
      connection->drain();
    }
    if (open.empty()) {
      shared->when_empty();
    }
  });
}

void Server::State::stop() {
  drain();
  shared->stopping = true;
  asio::post(control, [this] {
    for (auto& connection : shared->connections()) {
      connection->stop();
    }
  });
}

Server::Server(Options options, const Router& router, Registry* metrics)
    : state_(std::make_shared<State>(std::move(options), router, metrics)) {}

Server::~Server() = default;

void Server::bind() {
  state_->bind();
}

void Server::listen() {
  state_->listen();
}

uint16_t Server::port() const {
  return state_->port;
}

std::string Server::url() const {
  const Options& options = state_->shared->options;
  std::string scheme = options.tls.cert_file.empty() ? "http" : "https";
  if (is_unix(options.host)) {
    return cat(scheme, "+unix:", options.host);
  }
  return cat(scheme, "://", show(options.host, state_->port), options.prefix);
}

void Server::run() {
  state_->run();
}

void Server::drain() {
  state_->drain();
}

void Server::stop() {
  state_->stop();
}

void Server::on_drain(std::function<void()> callback) {
  state_->on_drain = std::move(callback);
}

}  // namespace mlxcel::http
