// Collects what is logged while it lives.
#pragma once

#include "core/log.h"

#include <string>
#include <vector>

namespace mlxcel::testing {

class LogCapture {
 public:
  LogCapture()
      : previous_(set_log_sink([this](LogLevel level, std::string_view text) {
          (level == LogLevel::warning ? warnings : infos).emplace_back(text);
        })) {}
  ~LogCapture() {
    set_log_sink(std::move(previous_));
  }
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;

  std::vector<std::string> warnings, infos;

 private:
  LogSink previous_;
};

}  // namespace mlxcel::testing
