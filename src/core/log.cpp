#include "core/log.h"

#include <fmt/format.h>

#include <cstdio>
#include <mutex>
#include <utility>

namespace mlxcel {

namespace {

std::mutex& sink_mutex() {
  static std::mutex mutex;
  return mutex;
}

LogSink& current_sink() {
  static LogSink sink;
  return sink;
}

// One message is one line, whatever clients put into it.
std::string one_line(std::string_view message) {
  std::string out;
  for (char c : message) {
    bool control = (unsigned char)c < ' ' || c == 0x7f;
    out += control ? fmt::format("\\x{:02x}", (unsigned char)c)
                   : std::string(1, c);
  }
  return out;
}

void emit(LogLevel level, std::string_view text) {
  std::string message = one_line(text);
  std::lock_guard lock(sink_mutex());
  if (current_sink()) {
    current_sink()(level, message);
    return;
  }
  std::string line = fmt::format(
      "{}{}\n", level == LogLevel::warning ? "mlxcel: warning: " : "", message);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace

void log_info(std::string_view message) {
  emit(LogLevel::info, message);
}

void log_warning(std::string_view message) {
  emit(LogLevel::warning, message);
}

LogSink set_log_sink(LogSink sink) {
  std::lock_guard lock(sink_mutex());
  return std::exchange(current_sink(), std::move(sink));
}

}  // namespace mlxcel
