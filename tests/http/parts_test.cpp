// Parts of the transport that need no connection.
#include "http/access_log.h"
#include "http/auth.h"
#include "http/failure.h"
#include "http/metrics.h"
#include "http/router.h"
#include "http/url.h"

#include "core/error.h"
#include "support/log_capture.h"
#include "support/temporary_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <thread>

namespace mlxcel::http {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Url, DecodesPercentSigns) {
  EXPECT_EQ(percent_decode("a%2Fb+c%c3%A9", false), "a/b+c\xc3\xa9");
  EXPECT_EQ(percent_decode("a+b", true), "a b");
  EXPECT_EQ(percent_decode("", false), "");
  for (const char* bad : {"%", "%4", "%g0", "%0g", "%00", "a%"}) {
    EXPECT_EQ(percent_decode(bad, false), std::nullopt) << bad;
  }
  EXPECT_EQ(
      parse_query("a=1&b&&c=%3d=&=d"),
      (Fields{{"a", "1"}, {"b", ""}, {"c", "=="}, {"", "d"}}));
  EXPECT_EQ(parse_query("a=%"), std::nullopt);
}

TEST(Router, PrefersExactPaths) {
  Router router;
  auto add = [&](const char* method, const char* path) {
    Route route;
    route.method = method;
    route.path = path;
    router.add(std::move(route));
  };
  add("GET", "/a/{x}");
  add("GET", "/a/b");
  add("POST", "/a/{x}/c/{y}");
  EXPECT_EQ(router.match("GET", "/a/b").route->path, "/a/b");
  EXPECT_EQ(router.match("HEAD", "/a/q").route->path, "/a/{x}");
  Match match = router.match("POST", "/a/1/c/2");
  EXPECT_EQ(match.params, (Fields{{"x", "1"}, {"y", "2"}}));
  EXPECT_EQ(router.match("PUT", "/a/b").route, nullptr);
  EXPECT_THAT(router.match("PUT", "/a/b").allowed, ElementsAre("GET"));
  EXPECT_TRUE(router.match("GET", "/a").allowed.empty());
  EXPECT_TRUE(router.match("GET", "").allowed.empty());
  EXPECT_THROW(add("GET", "/a/b"), UsageError);
}

TEST(ApiKeys, AreReadFromAFile) {
  mlxcel::testing::TemporaryFolder folder;
  EXPECT_THAT(
      read_key_file(folder.write("keys", "one\r\n\n two \nthree")),
      ElementsAre("one", " two", "three"));
  EXPECT_THROW(read_key_file(folder.write("none", "\n \n")), UsageError);
  EXPECT_THROW(read_key_file(folder.path() / "absent"), UsageError);
}

TEST(Failures, OfTheServerAreNotTheClients) {
  mlxcel::testing::LogCapture log;
  auto of = [](auto error) {
    return to_failure(std::make_exception_ptr(std::move(error)));
  };
  Failure device = of(Error("attention failed", "at address 0x1", "mend it"));
  EXPECT_EQ(device.status, 500);
  EXPECT_EQ(device.type, "server_error");
  EXPECT_STREQ(device.what(), "attention failed");
  Failure shape = of(ShapeError("linear", "64 and 32", ""));
  EXPECT_EQ(shape.status, 500);
  EXPECT_STREQ(shape.what(), "internal error");
  EXPECT_EQ(of(std::runtime_error("secret")).status, 500);
  ASSERT_EQ(log.warnings.size(), 3u);
  EXPECT_THAT(log.warnings[0], HasSubstr("0x1"));
  for (const Failure& input :
       {of(UsageError("a", "b", "c")),
        of(ConfigError("a", "b", "c")),
        of(CheckpointError("a", "b", "c")),
        of(AdapterError("a", "b", "c")),
        of(SurgeryError("a", "b", "c")),
        of(TextError("a", "b", "c"))}) {
    EXPECT_EQ(input.status, 400);
    EXPECT_EQ(input.type, "invalid_request_error");
    EXPECT_THAT(input.what(), HasSubstr("b"));
  }
  EXPECT_EQ(log.warnings.size(), 3u);
}

TEST(Events, SplitLinesOfData) {
  EXPECT_EQ(event("a"), "data: a\n\n");
  EXPECT_EQ(event("a\nb", "name"), "event: name\ndata: a\ndata: b\n\n");
  EXPECT_EQ(event(""), "data: \n\n");
}

TEST(AccessLog, StaysOneLine) {
  Request request;
  request.method = "GET";
  request.path = "/a\nb";
  request.peer = "unix";
  request.trace_id = "t";
  Response response(nullptr, ErrorStyle::native);
  response.log_field("tokens", 3);
  AccessRecord record{request, response};
  record.status = 200;
  record.bytes = 5;
  record.seconds = 0.0123;
  EXPECT_EQ(
      access_line(record, LogFormat::text),
      "GET /a?b 200 12.3 ms 5 B unix id=t tokens=3");
  EXPECT_EQ(
      access_line(record, LogFormat::json),
      R"({"method":"GET","path":"/a\nb","status":200,"ms":12.3,"bytes":5,)"
      R"("peer":"unix","id":"t","tokens":3})");
}

TEST(Log, OneMessageIsOneLine) {
  mlxcel::testing::LogCapture log;
  log_warning("a\nServing b\x1b[2K é");
  EXPECT_THAT(log.warnings, ElementsAre("a\\x0aServing b\\x1b[2K é"));
}

TEST(Metrics, WritesPrometheusText) {
  Registry registry;
  registry.counter("b_total", "Help \\ with\nbreak.").add(2);
  registry.counter("b_total", "", {{"k", "v\"\\\n"}}).add();
  registry.gauge("a", "A gauge.").set(-0.5);
  double bounds[] = {1, 2};
  Histogram& histogram = registry.histogram("c", "C.", bounds, {{"r", "x"}});
  for (double value : {0.5, 1.0, 1.5, 7.0}) {
    histogram.observe(value);
  }
  registry.callback(Registry::Kind::gauge, "d", "D.", [] { return INFINITY; });
  EXPECT_EQ(
      registry.text(),
      "# HELP a A gauge.\n# TYPE a gauge\na -0.5\n"
      "# HELP b_total Help \\\\ with\\nbreak.\n# TYPE b_total counter\n"
      "b_total 2\nb_total{k=\"v\\\"\\\\\\n\"} 1\n"
      "# HELP c C.\n# TYPE c histogram\n"
      "c_bucket{r=\"x\",le=\"1\"} 2\nc_bucket{r=\"x\",le=\"2\"} 3\n"
      "c_bucket{r=\"x\",le=\"+Inf\"} 4\n"
      "c_sum{r=\"x\"} 10\nc_count{r=\"x\"} 4\n"
      "# HELP d D.\n# TYPE d gauge\nd +Inf\n");
  EXPECT_EQ(histogram.count(), 4u);
  EXPECT_THROW(registry.gauge("b_total", ""), std::logic_error);
}

TEST(Metrics, LosesNothingBetweenThreads) {
  Registry registry;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      Counter& counter = registry.counter("n_total", "N.");
      Histogram& histogram = registry.histogram("h", "H.");
      for (int i = 0; i < 5000; ++i) {
        counter.add();
        histogram.observe(0.25);
      }
      registry.text();
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(registry.counter("n_total", "").value(), 20000);
  EXPECT_EQ(registry.histogram("h", "").count(), 20000u);
  EXPECT_EQ(registry.histogram("h", "").sum(), 5000);
}

TEST(Metrics, KnowTheProcess) {
  Registry registry;
  add_process_metrics(registry);
  EXPECT_THAT(registry.text(), HasSubstr("\nprocess_open_fds "));
  EXPECT_THAT(registry.text(), HasSubstr("\nprocess_resident_memory_bytes "));
}

}  // namespace
}  // namespace mlxcel::http
