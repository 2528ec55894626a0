// The running server: answers, connections, streams, the end.
#include "server_support.h"

#include "core/error.h"
#include "support/temporary_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <csignal>

namespace mlxcel::http {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

bool eventually(const std::function<bool()>& condition) {
  return TestServer::eventually(condition);
}

TEST(HttpServer, AnswersWithParametersAndQuery) {
  TestServer server;
  Client client(server.port());
  Answer answer = client.call("GET", "/hello/a%20b?q=x+y%21&r");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.headers["content-type"], "application/json; charset=utf-8");
  EXPECT_EQ(answer.json()["hello"], "a b");
  EXPECT_EQ(answer.json()["q"], "x y!");
  // The same connection serves on; a path without parameters goes first.
  EXPECT_EQ(client.call("GET", "/hello/special").body, "special");
  EXPECT_EQ(client.call("GET", "http://host/health?x").status, 200);
}

TEST(HttpServer, HeadHasTheLengthAndNoBody) {
  TestServer server;
  Client client(server.port());
  Answer answer = client.call("HEAD", "/big");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.headers["content-length"], "4194304");
  EXPECT_EQ(client.call("GET", "/health").status, 200);
}

TEST(HttpServer, TakesBodiesOfEveryForm) {
  TestServer server;
  Client client(server.port());
  std::string body(300'000, 'b');
  body += "end";
  EXPECT_EQ(client.call("POST", "/echo", body).body, body);
  client.send(
      "POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
      "4\r\nab");
  client.send("cd\r\n3;ext=1\r\nefg\r\n0\r\n");
  client.send("Trailer: x\r\n\r\n");
  EXPECT_EQ(client.read().body, "abcdefg");
  // The client waits for leave to send.
  client.send(
      "POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\n"
      "Expect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("ok");
  EXPECT_EQ(client.read().body, "ok");
  EXPECT_EQ(client.call("POST", "/echo").status, 200);
}

TEST(HttpServer, AnswersPipelinedRequestsInOrder) {
  TestServer server;
  Client client(server.port());
  std::string all;
  for (int i = 0; i < 50; ++i) {
    all += fmt::format("GET /hello/n{} HTTP/1.1\r\nHost: t\r\n\r\n", i);
    all += "POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\n\r\n";
    all += fmt::format("{:03}", i);
  }
  all += "GET /events HTTP/1.1\r\nHost: t\r\n\r\n";
  all += "GET /health HTTP/1.1\r\nHost: t\r\n\r\n";
  client.send(all);
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(client.read().json()["hello"], fmt::format("n{}", i));
    EXPECT_EQ(client.read().body, fmt::format("{:03}", i));
  }
  EXPECT_EQ(client.read().chunks.size(), 3u);
  EXPECT_EQ(client.read().json()["status"], "ok");
}

TEST(HttpServer, FinishesARequestWhoseInputCameByBytes) {
  TestServer server;
  Client client(server.port());
  for (char c :
       std::string("\r\nPOST /echo HTTP/1.1\r\nhOST:t\r\ncontent-length:  "
                   "2\r\n\r\nhi")) {
    client.send(std::string_view(&c, 1));
  }
  EXPECT_EQ(client.read().body, "hi");
}

TEST(HttpServer, SpeaksTheOldVersion) {
  TestServer server;
  Client client(server.port());
  client.send("GET /events HTTP/1.0\r\n\r\n");
  Answer answer = client.read();
  EXPECT_EQ(answer.headers["connection"], "close");
  EXPECT_FALSE(answer.headers.contains("transfer-encoding"));
  EXPECT_EQ(
      answer.body, "data: {\"n\":0}\n\ndata: {\"n\":1}\n\ndata: {\"n\":2}\n\n");
  Client other(server.port());
  other.send("GET /health HTTP/1.0\r\n\r\n");
  EXPECT_EQ(other.read().status, 200);
  EXPECT_TRUE(other.at_end());
}

TEST(HttpServer, StreamsEachPieceAsItComes) {
  TestServer server;
  Client client(server.port());
  Answer answer = client.call("GET", "/events");
  EXPECT_EQ(answer.headers["content-type"], "text/event-stream; charset=utf-8");
  EXPECT_EQ(answer.headers["cache-control"], "no-cache");
  EXPECT_TRUE(answer.whole);
  EXPECT_THAT(
      answer.chunks,
      ::testing::ElementsAre(
          "data: {\"n\":0}\n\n", "data: {\"n\":1}\n\n", "data: {\"n\":2}\n\n"));
}

TEST(HttpServer, PingsAStreamThatStalls) {
  Options options;
  options.ping_interval = milliseconds(20);
  TestServer server(options);
  Client client(server.port());
  client.request("GET", "/forever");
  EXPECT_THAT(client.read_until(": ping\n\n"), HasSubstr("data: begun\n\n"));
  client.read_until(": ping\n\n");
}

TEST(HttpServer, LeavingCancelsTheHandler) {
  TestServer server;
  for (const char* path : {"/forever", "/wait"}) {
    int before = server.seen().cancelled;
    int started = server.seen().started;
    Client client(server.port());
    client.request("GET", path);
    ASSERT_TRUE(
        eventually([&] { return server.seen().started == started + 1; }));
    EXPECT_EQ(server.seen().cancelled, before);
    client.close();
    EXPECT_TRUE(eventually([&] {
      return server.seen().cancelled == before + 1;
    })) << path;
  }
  EXPECT_TRUE(eventually([&] {
    auto lines = server.log_lines();
    return !lines.empty() &&
           std::ranges::any_of(lines, [](const std::string& line) {
             return line.starts_with("GET /wait 499 ");
           });
  }));
}

TEST(HttpServer, AClientThatDoesNotReadIsGivenUp) {
  Options options;
  options.limits.write_time = milliseconds(100);
  TestServer server(options);
  Client client(server.port());
  client.request("GET", "/flood");
  EXPECT_TRUE(eventually([&] { return server.seen().refused_writes == 1; }));
}

TEST(HttpServer, AClientThatDoesNotReadHoldsUpNoDrain) {
  Options options;
  options.limits.drain_write_time = milliseconds(100);
  TestServer server(options);
  Client client(server.port());
  client.request("GET", "/flood");
  ASSERT_TRUE(eventually([&] { return server.seen().started == 1; }));
  server.server().drain();
  EXPECT_TRUE(eventually([&] { return server.seen().refused_writes == 1; }));
}

TEST(HttpServer, ALongRequestRunsIntoItsLimit) {
  Options options;
  options.limits.request_time = milliseconds(50);
  TestServer server(options);
  Client client(server.port());
  Answer answer = client.call("GET", "/wait");
  EXPECT_EQ(answer.status, 504);
  EXPECT_EQ(answer.json()["error"]["type"], "timeout_error");
  // A stream has no status left to give: it ends with an event that says so,
  // and without its last chunk.
  Client other(server.port());
  answer = other.call("GET", "/forever");
  EXPECT_FALSE(answer.whole);
  ASSERT_EQ(answer.chunks.size(), 2u);
  EXPECT_EQ(answer.chunks[0], "data: begun\n\n");
  ASSERT_THAT(answer.chunks[1], StartsWith("data: {"));
  nlohmann::json last = nlohmann::json::parse(answer.chunks[1].substr(6));
  EXPECT_EQ(last["error"]["type"], "timeout_error");
  EXPECT_TRUE(eventually([&] {
    return std::ranges::any_of(server.log_lines(), [](const auto& line) {
      return line.starts_with("GET /forever 200 ") &&
             line.find("error=\"timeout_error\"") != line.npos;
    });
  }));
}

TEST(HttpServer, WorksInTheBackground) {
  TestServer server;
  Client client(server.port());
  EXPECT_EQ(client.call("GET", "/background").json()["elsewhere"], true);
  Answer failed = client.call("GET", "/background?throw");
  EXPECT_EQ(failed.status, 400);
  EXPECT_EQ(failed.json()["error"]["message"], "thrown elsewhere");
}

TEST(HttpServer, ListensOnAUnixSocket) {
  mlxcel::testing::TemporaryFolder folder;
  std::string path = (folder.path() / "server.sock").string();
  Options options;
  options.host = path;
  {
    TestServer server(options);
    ASSERT_TRUE(eventually([&] { return Client(path).connected(); }));
    EXPECT_EQ(server.server().url(), "http+unix:" + path);
    Client client(path);
    EXPECT_EQ(client.call("GET", "/health").status, 200);
    EXPECT_TRUE(eventually([&] { return !server.log_lines().empty(); }));
    EXPECT_THAT(server.log_lines(), Contains(HasSubstr(" unix ")));

    Router router;
    Server second(options, router);
    try {
      second.bind();
      FAIL() << "took a socket that is in use";
    } catch (const Error& error) {
      EXPECT_EQ(dynamic_cast<const UsageError*>(&error), nullptr);
      EXPECT_THAT(error.what(), HasSubstr("another program listens"));
    }
  }
  EXPECT_FALSE(std::filesystem::exists(path));

  // One that a dead process left behind.
  int stale = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  ASSERT_EQ(::bind(stale, (sockaddr*)&address, sizeof(address)), 0);
  ::close(stale);
  {
    TestServer server(options);
    ASSERT_TRUE(eventually([&] { return Client(path).connected(); }));
  }
  std::filesystem::path file = folder.write("file.sock", "not a socket");
  options.host = file.string();
  Router router;
  EXPECT_THROW(Server(options, router).bind(), Error);
  EXPECT_TRUE(std::filesystem::exists(file));
}

TEST(HttpServer, SpeaksTls) {
  mlxcel::testing::TemporaryFolder folder;
  Options options;
  options.tls.cert_file = folder.path() / "cert.pem";
  options.tls.key_file = folder.path() / "key.pem";
  write_certificate(options.tls.cert_file, options.tls.key_file);
  TestServer server(options);
  EXPECT_THAT(server.server().url(), StartsWith("https://127.0.0.1:"));
  {
    Client client(server.port(), true);
    ASSERT_TRUE(client.connected());
    EXPECT_EQ(client.call("GET", "/events").chunks.size(), 3u);
    EXPECT_EQ(client.call("GET", "/big").body.size(), size_t(4) << 20);
    std::string body(200'000, 'z');
    EXPECT_EQ(client.call("POST", "/echo", body).body, body);
    Answer last = client.call("GET", "/health", {}, {"Connection: close"});
    EXPECT_EQ(last.status, 200);
    EXPECT_TRUE(client.at_end());
  }
  {
    Client client(server.port(), true);
    client.request("GET", "/forever");
    ASSERT_TRUE(eventually([&] { return server.seen().started == 1; }));
  }
  EXPECT_TRUE(eventually([&] { return server.seen().cancelled == 1; }));
  Client plain(server.port());
  plain.request("GET", "/health");
  EXPECT_THAT(plain.read_until("").substr(0, 4), Not("HTTP"));
}

TEST(HttpServer, RefusesCertificatesThatDoNotFit) {
  mlxcel::testing::TemporaryFolder folder;
  Options options;
  Router router;
  options.tls.cert_file = folder.path() / "cert.pem";
  EXPECT_THROW(Server(options, router).bind(), Error);
  options.tls.key_file = folder.path() / "key.pem";
  EXPECT_THROW(Server(options, router).bind(), Error);
  write_certificate(options.tls.cert_file, options.tls.key_file);
  // Another pair's key.
  write_certificate(folder.path() / "other.pem", options.tls.key_file);
  try {
    Server(options, router).bind();
    FAIL() << "took a key that does not fit";
  } catch (const Error& error) {
    EXPECT_THAT(
        error.what(), AllOf(HasSubstr("key.pem"), HasSubstr("does not fit")));
  }
  // A key of another kind.
  write_other_key(options.tls.key_file);
  try {
    Server(options, router).bind();
    FAIL() << "took a key of another kind";
  } catch (const UsageError& error) {
    EXPECT_THAT(
        error.what(),
        AllOf(
            HasSubstr("key.pem does not fit"),
            HasSubstr(options.tls.cert_file.string())));
  }
}

TEST(HttpServer, APortInUseIsAnErrorAtTheStart) {
  TestServer server;
  Options options;
  options.port = server.port();
  Router router;
  try {
    Server(options, router).bind();
    FAIL() << "bound a port that is in use";
  } catch (const Error& error) {
    EXPECT_THAT(
        error.what(),
        AllOf(
            HasSubstr(fmt::format("127.0.0.1:{}", server.port())),
            HasSubstr("in use")));
  }
  options.host = "no-such-host.invalid";
  EXPECT_THROW(Server(options, router).bind(), Error);
}

TEST(HttpServer, ListensOnIpv6) {
  Options options;
  options.port = 0;
  Router router;
  for (const char* host : {"::1", "[::1]"}) {
    options.host = host;
    Server server(options, router);
    try {
      server.bind();
    } catch (const Error& error) {
      GTEST_SKIP() << "no IPv6 here: " << error.what();
    }
    EXPECT_EQ(server.url(), fmt::format("http://[::1]:{}", server.port()));
  }
}

TEST(HttpServer, TwoProcessesShareAPortOnlyWhenAsked) {
  Options options;
  options.port = 0;
  options.reuse_port = true;
  Router router;
  Server first(options, router);
  first.bind();
  options.port = first.port();
  Server second(options, router);
  EXPECT_NO_THROW(second.bind());
}

TEST(HttpServer, DrainsOnTheFirstSignal) {
  TestServer server;
  Client running(server.port());
  running.request("GET", "/wait");
  ASSERT_TRUE(eventually([&] { return server.seen().started == 1; }));
  Client idle(server.port());
  EXPECT_EQ(idle.call("GET", "/health").status, 200);
  // Requests that have not arrived whole do not run.
  const char* const parts[] = {
      "POST /ec",
      "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{"};
  std::vector<std::unique_ptr<Client>> partial;
  for (const char* part : parts) {
    partial.push_back(std::make_unique<Client>(server.port()));
    partial.back()->send(part);
  }

  ::kill(::getpid(), SIGTERM);
  EXPECT_TRUE(eventually([&] { return !Client(server.port()).connected(); }));
  EXPECT_TRUE(idle.at_end());
  for (auto& client : partial) {
    EXPECT_TRUE(client->at_end());
  }
  EXPECT_TRUE(server.running());
  EXPECT_EQ(server.seen().cancelled, 0);

  server.release();
  Answer answer = running.read();
  EXPECT_EQ(answer.json()["waited"], true);
  EXPECT_EQ(answer.headers["connection"], "close");
  server.join();
  EXPECT_FALSE(server.running());
}

TEST(HttpServer, HeedsASignalThatComesBeforeItRuns) {
  Options options;
  options.port = 0;
  Router router;
  Server server(options, router);
  server.listen();
  ::kill(::getpid(), SIGTERM);
  server.run();  // returns
  EXPECT_FALSE(Client(server.port()).connected());
}

TEST(HttpServer, StopsAtOnceOnTheSecondSignal) {
  TestServer server;
  Client waiting(server.port());
  waiting.request("GET", "/wait");
  Client streaming(server.port());
  streaming.request("GET", "/forever");
  ASSERT_TRUE(eventually([&] { return server.seen().started == 2; }));
  ::kill(::getpid(), SIGINT);
  ASSERT_TRUE(eventually([&] {
    auto lines = server.log_lines();
    return std::ranges::any_of(lines, [](const std::string& line) {
      return line.starts_with("draining");
    });
  }));
  EXPECT_TRUE(server.running());
  ::kill(::getpid(), SIGINT);
  server.join();
  EXPECT_EQ(server.seen().cancelled, 2);
  EXPECT_FALSE(streaming.read().whole);
}

TEST(HttpServer, CountsAndLogsEachRequest) {
  Options options;
  options.access_log = LogFormat::json;
  TestServer server(options);
  {
    Client client(server.port());
    client.call("GET", "/hello/you?secret=1", {}, {"X-Request-Id: abc-1"});
    client.call("GET", "/nowhere");
    client.call("GET", "/hello/me");
  }
  ASSERT_TRUE(eventually([&] { return server.log_lines().size() >= 3; }));
  auto line = nlohmann::json::parse(server.log_lines()[0]);
  EXPECT_EQ(line["method"], "GET");
  EXPECT_EQ(line["path"], "/hello/you");
  EXPECT_EQ(line["status"], 200);
  EXPECT_EQ(line["id"], "abc-1");
  EXPECT_EQ(line["greeted"], "you");
  EXPECT_GT(line["bytes"], 0);
  std::string text = server.metrics().text();
  EXPECT_THAT(
      text,
      HasSubstr(
          "mlxcel_http_requests_total{route=\"/hello/{name}\",status=\"200\"} "
          "2\n"));
  EXPECT_THAT(
      text,
      HasSubstr(
          "mlxcel_http_requests_total{route=\"none\",status=\"404\"} 1\n"));
  EXPECT_THAT(
      text,
      HasSubstr(
          "mlxcel_http_request_seconds_count{route=\"/hello/{name}\"} 2\n"));
}

TEST(HttpServer, ConnectionsBeyondTheLimitWaitForAPlace) {
  Options options;
  options.limits.connections = 3;
  TestServer server(options);
  std::vector<std::unique_ptr<Client>> held;
  for (int i = 0; i < 3; ++i) {
    held.push_back(std::make_unique<Client>(server.port()));
    EXPECT_EQ(held.back()->call("GET", "/health").status, 200);
  }
  Client late(server.port());  // waits in the kernel
  late.request("GET", "/health");
  EXPECT_EQ(held[0]->call("GET", "/health").status, 200);
  held[1]->close();
  EXPECT_EQ(late.read().status, 200);
}

TEST(HttpServer, OpenFilesBoundConnections) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = 256;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  EXPECT_EQ(allowed_connections(100), 100);
  rlim_t most = before.rlim_max == RLIM_INFINITY ? 4096 : before.rlim_max;
  int wanted = int(std::min<rlim_t>(most, 4096)) - 64;
  EXPECT_EQ(allowed_connections(wanted), wanted);  // by raising the limit
  rlimit after{};
  ::getrlimit(RLIMIT_NOFILE, &after);
  EXPECT_GE(after.rlim_cur, rlim_t(wanted) + 64);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST(HttpServer, ServesManyConnectionsAtOnce) {
  Options options;
  options.threads = 4;
  TestServer server(options);
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        Client client(server.port());
        std::string body(size_t(1) << (i % 16), 'c');
        good += client.call("POST", "/echo", body).body == body;
        good += client.call("GET", "/events").chunks.size() == 3;
        client.request("GET", i % 2 ? "/forever" : "/flood");
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(good, 8 * 20 * 2);
  EXPECT_TRUE(eventually([&] {
    return server.metrics().text().find("mlxcel_http_connections 0\n") !=
           std::string::npos;
  }));
}

}  // namespace
}  // namespace mlxcel::http
