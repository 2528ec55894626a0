// What is decided about a request before its handler: form, size, route, key,
// origin; and how errors look.
#include "server_support.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mlxcel::http {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(HttpRequests, ErrorsComeInTheStyleOfTheRoute) {
  TestServer server;
  Client client(server.port());
  Answer native = client.call("GET", "/fail");
  EXPECT_EQ(native.status, 400);
  EXPECT_EQ(
      native.json(),
      json::parse(R"({"error":{"code":400,"message":"no such thing",
                     "type":"invalid_request_error"}})"));
  EXPECT_EQ(
      client.call("GET", "/v1/fail").json(),
      json::parse(R"({"error":{"message":"no such thing","param":"thing",
                     "type":"invalid_request_error","code":null}})"));
  Answer anthropic =
      client.call("GET", "/v1/messages", {}, {"X-Request-Id: r1"});
  EXPECT_EQ(
      anthropic.json(),
      json::parse(R"({"type":"error","request_id":"r1","error":
          {"type":"invalid_request_error","message":"no such thing"}})"));
  EXPECT_EQ(anthropic.headers["request-id"], "r1");
}

TEST(HttpRequests, UnknownPathsAndMethods) {
  TestServer server;
  Client client(server.port());
  Answer missing = client.call("GET", "/nowhere");
  EXPECT_EQ(missing.status, 404);
  EXPECT_EQ(missing.json()["error"]["type"], "not_found_error");
  EXPECT_EQ(missing.json()["error"]["code"], 404);
  EXPECT_EQ(client.call("GET", "/v1/nowhere").json()["error"]["param"], json());
  EXPECT_EQ(client.call("GET", "/hello/").status, 404);
  EXPECT_EQ(client.call("GET", "/hello/a/b").status, 404);
  Answer wrong = client.call("DELETE", "/hello/you");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.headers["allow"], "GET, POST");
  EXPECT_EQ(wrong.json()["error"]["type"], "method_not_allowed");
  Answer allowed = client.call("OPTIONS", "/hello/you");
  EXPECT_EQ(allowed.status, 204);
  EXPECT_EQ(allowed.headers["allow"], "GET, POST");
}

TEST(HttpRequests, FaultsOfHandlersTellNothing) {
  TestServer server;
  Client client(server.port());
  for (const char* path : {"/crash", "/nothing"}) {
    Answer answer = client.call("GET", path);
    EXPECT_EQ(answer.status, 500);
    EXPECT_EQ(answer.json()["error"]["type"], "server_error");
    EXPECT_THAT(answer.body, ::testing::Not(HasSubstr("secret")));
  }
  Answer late = client.call("GET", "/fail-late");
  EXPECT_EQ(late.status, 200);
  EXPECT_THAT(
      late.body,
      AllOf(
          HasSubstr("data: begun\n\n"),
          HasSubstr("\"type\":\"unavailable_error\"")));
  EXPECT_FALSE(late.whole);
}

TEST(HttpRequests, MalformedRequestsAreAnswered) {
  TestServer server;
  const std::string cases[] = {
      "nonsense\r\n\r\n",
      "GET /health\r\n\r\n",
      "GET /health HTTP/2.0\r\nHost: t\r\n\r\n",
      "GET /health HTTP/1.1\r\n\r\n",  // no Host
      "GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
      "GET health HTTP/1.1\r\nHost: t\r\n\r\n",
      "GET /%zz HTTP/1.1\r\nHost: t\r\n\r\n",
      "GET /%00 HTTP/1.1\r\nHost: t\r\n\r\n",
      "GET /health?a=%f HTTP/1.1\r\nHost: t\r\n\r\n",
      "GET /health HTTP/1.1\r\nHost: t\r\nBad Name: x\r\n\r\n",
      std::string("GET /health HTTP/1.1\r\nHost: t\r\nA: ") + '\0' + "\r\n\r\n",
      "POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: -1\r\n\r\n",
      "POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 1x\r\n\r\n",
      "POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 1\r\n"
      "Content-Length: 2\r\n\r\nab",
      "POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\n"
      "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
      "POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
      "xyz\r\n",
      "POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
      "ffffffffffffffffff\r\n",
  };
  for (const std::string& text : cases) {
    Client client(server.port());
    client.send(text);
    Answer answer = client.read();
    EXPECT_EQ(answer.status, 400) << text;
    EXPECT_EQ(answer.json()["error"]["type"], "invalid_request_error") << text;
  }
  Client client(server.port());
  EXPECT_EQ(client.call("GET", "/health").status, 200);
}

TEST(HttpRequests, BodiesMustBeJson) {
  TestServer server;
  Client client(server.port());
  for (const char* body :
       {"{", "[1]", "\xff", "{\"a\":1,\"a\":2}", "{} x", "nul"}) {
    Answer answer = client.call("POST", "/v1/echo", body);
    EXPECT_EQ(answer.status, 400) << body;
    EXPECT_EQ(answer.json()["error"]["type"], "invalid_request_error") << body;
  }
  EXPECT_EQ(client.call("POST", "/v1/echo").status, 400);
  std::string deep = "{\"a\":" + std::string(100'000, '[');
  Answer refused = client.call("POST", "/v1/echo", deep);
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(
      refused.json()["error"]["message"],
      "cannot read the request's body: nested deeper than 64 levels");
  EXPECT_EQ(client.call("POST", "/v1/echo", "{\"a\":1}").body, "{\"a\":1}");
}

TEST(HttpRequests, LimitsOfSize) {
  Options options;
  options.limits.body_bytes = 1000;
  options.limits.header_bytes = 2000;
  TestServer server(options);
  {
    Client client(server.port());
    EXPECT_EQ(client.call("POST", "/echo", std::string(1000, 'a')).status, 200);
    Answer answer = client.call("POST", "/v1/echo", std::string(1001, 'a'));
    EXPECT_EQ(answer.status, 413);
    EXPECT_EQ(answer.json()["error"]["type"], "request_too_large");
    EXPECT_EQ(answer.headers["connection"], "close");
    EXPECT_TRUE(client.at_end());
  }
  {
    Client client(server.port());
    client.send(
        "POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
        "3e9\r\n" +
        std::string(1001, 'a') + "\r\n0\r\n\r\n");
    EXPECT_EQ(client.read().status, 413);
  }
  {
    Client client(server.port());
    Answer answer =
        client.call("GET", "/health", {}, {"X: " + std::string(3000, 'h')});
    EXPECT_EQ(answer.status, 431);
    EXPECT_EQ(answer.json()["error"]["type"], "invalid_request_error");
  }
}

TEST(HttpRequests, CompressedBodiesAreRefused) {
  TestServer server;
  Client client(server.port());
  Answer answer =
      client.call("POST", "/echo", "abc", {"Content-Encoding: gzip"});
  EXPECT_EQ(answer.status, 415);
  EXPECT_EQ(answer.headers["accept-encoding"], "identity");
  EXPECT_EQ(
      client.call("POST", "/echo", "abc", {"Content-Encoding: identity"}).body,
      "abc");
}

TEST(HttpRequests, SlowClientsAreCutOff) {
  Options options;
  options.limits.header_time = milliseconds(60);
  options.limits.body_time = milliseconds(60);
  TestServer server(options);
  Client head(server.port());
  head.send("GET /health HTTP/1.1\r\nHos");
  Answer answer = head.read();
  EXPECT_EQ(answer.status, 408);
  EXPECT_EQ(answer.json()["error"]["type"], "timeout_error");
  EXPECT_TRUE(head.at_end());
  Client body(server.port());
  body.send("POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 9\r\n\r\nab");
  EXPECT_EQ(body.read().status, 408);
}

TEST(HttpRequests, IdleConnectionsAreClosed) {
  Options options;
  // Long enough for a request on a busy machine.
  options.limits.idle_time = milliseconds(500);
  TestServer server(options);
  Client idle(server.port());
  EXPECT_EQ(idle.call("GET", "/health").status, 200);
  EXPECT_TRUE(idle.at_end());
  Client silent(server.port());
  EXPECT_TRUE(silent.at_end());
}

TEST(HttpRequests, KeysGuardAllButOpenRoutes) {
  Options options;
  options.api_keys = {"first-key", "second"};
  TestServer server(options);
  Client client(server.port());
  EXPECT_EQ(client.call("GET", "/health").status, 200);
  for (const char* line :
       {"X: y",
        "Authorization: Bearer wrong-key",
        "Authorization: Bearer ",
        "Authorization: Basic second",
        "X-Api-Key: secon",
        "X-Api-Key: ",
        "X-Api-Key: secondsecond"}) {
    Answer answer = client.call("GET", "/hello/you", {}, {line});
    EXPECT_EQ(answer.status, 401) << line;
    EXPECT_EQ(answer.json()["error"]["type"], "authentication_error");
    EXPECT_EQ(answer.headers["www-authenticate"], "Bearer");
  }
  for (const char* line :
       {"Authorization: Bearer first-key",
        "authorization: bearer  second",
        "X-Api-Key: second"}) {
    EXPECT_EQ(client.call("GET", "/hello/you", {}, {line}).status, 200) << line;
  }
  // A body is read away, or not read at all.
  EXPECT_EQ(client.call("POST", "/echo", "abc").status, 401);
  EXPECT_EQ(client.call("GET", "/health").status, 200);
  client.send(
      "POST /echo HTTP/1.1\r\nHost: t\r\nContent-Length: 9000000\r\n"
      "Expect: 100-continue\r\n\r\n");
  Answer refused = client.read();
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.headers["connection"], "close");
}

TEST(HttpRequests, PagesOfOtherOriginsMayNotCallUnlessAllowed) {
  Options options;
  options.host = "0.0.0.0";  // the client calls it "test"
  TestServer server(options);
  Client client(server.port());
  std::string local = "Origin: http://localhost:3000";
  Answer answer = client.call("POST", "/echo", "x", {local});
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(
      answer.headers["access-control-allow-origin"], "http://localhost:3000");
  EXPECT_EQ(answer.headers["vary"], "origin");
  for (const char* origin :
       {"https://evil.example",
        "http://localhost.evil.example",
        "http://127.0.0.1.evil.example",
        "null",
        "garbage"}) {
    std::string line = std::string("Origin: ") + origin;
    Answer refused = client.call("POST", "/echo", "x", {line});
    EXPECT_EQ(refused.status, 403) << origin;
    EXPECT_EQ(refused.json()["error"]["type"], "permission_error");
    Answer shown = client.call("GET", "/health", {}, {line});
    EXPECT_EQ(shown.status, 200);
    EXPECT_FALSE(shown.headers.contains("access-control-allow-origin"));
  }
}

TEST(HttpRequests, ItsOwnPageMayCallUnderAnyNameUnlessItIsForThisMachine) {
  // The client names the host "test". A page of a foreign name that resolves to
  // this machine (DNS rebinding) is of one origin with what it calls.
  const std::vector<std::string> page = {"Origin: http://test"},
                                 own = {"Sec-Fetch-Site: same-origin"};
  Options options;
  TestServer local(options);
  Client client(local.port());
  EXPECT_EQ(client.call("POST", "/echo", "x", page).status, 403);
  Answer refused = client.call("GET", "/hello/x", {}, own);
  EXPECT_EQ(refused.status, 403);
  EXPECT_EQ(refused.json()["error"]["type"], "permission_error");
  EXPECT_EQ(client.call("GET", "/hello/x").status, 200);  // no browser

  options.cors.origins = {"http://test"};
  TestServer named(options);
  Client allowed(named.port());
  EXPECT_EQ(allowed.call("POST", "/echo", "x", page).status, 200);
  EXPECT_EQ(allowed.call("GET", "/hello/x", {}, own).status, 200);

  options.cors.origins.clear();
  options.host = "0.0.0.0";
  TestServer open(options);
  Client other(open.port());
  EXPECT_EQ(other.call("POST", "/echo", "x", page).status, 200);
}

TEST(HttpRequests, PreflightsAreAnswered) {
  Options options;
  options.api_keys = {"k"};
  options.cors.origins = {"https://app.example"};
  TestServer server(options);
  Client client(server.port());
  std::vector<std::string> lines = {
      "Origin: https://app.example",
      "Access-Control-Request-Method: POST",
      "Access-Control-Request-Headers: authorization,content-type"};
  Answer answer = client.call("OPTIONS", "/echo", {}, lines);
  EXPECT_EQ(answer.status, 204);  // browsers send no key with it
  EXPECT_EQ(
      answer.headers["access-control-allow-origin"], "https://app.example");
  EXPECT_EQ(answer.headers["access-control-allow-methods"], "POST");
  EXPECT_EQ(
      answer.headers["access-control-allow-headers"],
      "authorization,content-type");
  EXPECT_FALSE(answer.headers.contains("access-control-allow-credentials"));
  // An error is readable for the page too.
  Answer refused = client.call("POST", "/echo", "x", {lines[0]});
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(
      refused.headers["access-control-allow-origin"], "https://app.example");
  lines[0] = "Origin: https://other.example";
  EXPECT_EQ(client.call("OPTIONS", "/echo", {}, lines).status, 403);
}

TEST(HttpRequests, AllOriginsWithAndWithoutCredentials) {
  Options options;
  options.cors.origins = {"*"};
  {
    TestServer server(options);
    Client client(server.port());
    Answer answer =
        client.call("GET", "/health", {}, {"Origin: https://any.example"});
    EXPECT_EQ(answer.headers["access-control-allow-origin"], "*");
  }
  options.cors.credentials = true;
  TestServer server(options);
  Client client(server.port());
  Answer answer =
      client.call("GET", "/health", {}, {"Origin: https://any.example"});
  EXPECT_EQ(
      answer.headers["access-control-allow-origin"], "https://any.example");
  EXPECT_EQ(answer.headers["access-control-allow-credentials"], "true");
}

TEST(HttpRequests, TraceIdsGoInAndOut) {
  TestServer server;
  Client client(server.port());
  Answer given = client.call("GET", "/hello/x", {}, {"X-Request-ID: id-7"});
  EXPECT_EQ(given.headers["x-request-id"], "id-7");
  EXPECT_EQ(given.json()["id"], "id-7");
  std::string trace = "4bf92f3577b34da6a3ce929d0e0e4736";
  Answer traced = client.call(
      "GET",
      "/hello/x",
      {},
      {"traceparent: 00-" + trace + "-00f067aa0ba902b7-01"});
  EXPECT_EQ(traced.headers["x-request-id"], trace);
  EXPECT_THAT(
      traced.headers["traceparent"],
      ::testing::MatchesRegex("00-" + trace + "-[0-9a-f]{16}-01"));
  EXPECT_NE(
      traced.headers["traceparent"], "00-" + trace + "-00f067aa0ba902b7-01");
  Answer fresh = client.call("GET", "/hello/x", {}, {"X-Request-ID: a\tb"});
  EXPECT_THAT(
      fresh.headers["x-request-id"], ::testing::MatchesRegex("[0-9a-f]{32}"));
  EXPECT_FALSE(fresh.headers.contains("traceparent"));
  EXPECT_NE(
      fresh.headers["x-request-id"],
      client.call("GET", "/hello/x").headers["x-request-id"]);
}

TEST(HttpRequests, APrefixStandsBeforeEveryPath) {
  Options options;
  options.prefix = "/llm";
  TestServer server(options);
  Client client(server.port());
  EXPECT_EQ(client.call("GET", "/llm/health").status, 200);
  EXPECT_EQ(client.call("GET", "/health").status, 404);
  EXPECT_EQ(client.call("GET", "/llmhealth").status, 404);
  EXPECT_EQ(
      server.server().url(),
      fmt::format("http://127.0.0.1:{}/llm", server.port()));
}

}  // namespace
}  // namespace mlxcel::http
