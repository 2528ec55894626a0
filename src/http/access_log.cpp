#include "http/access_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <random>

namespace mlxcel::http {

namespace {

// Not secret, only distinct: a counter mixed with a random start (splitmix64).
uint64_t next_id() {
  static std::atomic<uint64_t> counter{[] {
    std::random_device device;
    return uint64_t(device()) << 32 | device();
  }()};
  uint64_t x =
      counter.fetch_add(0x9e3779b97f4a7c15u, std::memory_order_relaxed);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

bool is_hex(std::string_view text) {
  return std::ranges::all_of(text, [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
  });
}

bool is_all_zero(std::string_view text) {
  return text.find_first_not_of('0') == std::string_view::npos;
}

// 00-<32 hex: trace>-<16 hex: span>-<2 hex: flags>; https://www.w3.org/TR/
// trace-context, version 00.
bool is_traceparent(std::string_view text) {
  return text.size() == 55 && text.starts_with("00-") && text[35] == '-' &&
         text[52] == '-' && is_hex(text.substr(3, 32)) &&
         is_hex(text.substr(36, 16)) && is_hex(text.substr(53, 2)) &&
         !is_all_zero(text.substr(3, 32)) && !is_all_zero(text.substr(36, 16));
}

}  // namespace

std::string trace_id_of(const Request& request) {
  constexpr size_t kLongest = 128;
  std::string_view given = request.header("x-request-id");
  bool usable =
      !given.empty() && given.size() <= kLongest &&
      std::ranges::all_of(given, [](char c) { return c > ' ' && c < 0x7f; });
  if (usable) {
    return std::string(given);
  }
  std::string_view parent = request.header("traceparent");
  if (is_traceparent(parent)) {
    return std::string(parent.substr(3, 32));
  }
  uint64_t high = next_id();
  return fmt::format("{:016x}{:016x}", high, next_id());
}

std::string traceparent_of(const Request& request) {
  std::string_view parent = request.header("traceparent");
  if (!is_traceparent(parent)) {
    return {};
  }
  return fmt::format(
      "{}{:016x}{}", parent.substr(0, 36), next_id() | 1, parent.substr(52));
}

std::string access_line(const AccessRecord& record, LogFormat format) {
  const Request& request = record.request;
  double ms = record.seconds * 1e3;
  if (format == LogFormat::json) {
    nlohmann::ordered_json line = {
        {"method", request.method},
        {"path", request.path},
        {"status", record.status},
        {"ms", std::round(ms * 1e3) / 1e3},
        {"bytes", record.bytes},
        {"peer", request.peer},
        {"id", request.trace_id}};
    for (const auto& [name, value] : record.response.log_fields()) {
      line[name] = value;
    }
    return line.dump(
        -1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  }
  std::string line = fmt::format(
      "{} {} {} {:.1f} ms {} B {} id={}",
      request.method,
      request.path,
      record.status,
      ms,
      record.bytes,
      request.peer,
      request.trace_id);
  for (const auto& [name, value] : record.response.log_fields()) {
    line += fmt::format(" {}={}", name, dump_json(value));
  }
  // A decoded path may hold anything; a log line stays one line.
  std::ranges::replace_if(
      line, [](char c) { return (unsigned char)c < ' ' || c == 0x7f; }, '?');
  return line;
}

}  // namespace mlxcel::http
