// Notices to the user on stderr: "mlxcel: warning: ...". Errors are thrown,
// never logged from below the edges.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace mlxcel {

enum class LogLevel : uint8_t { info, warning };

using LogSink = std::function<void(LogLevel level, std::string_view message)>;

// Both may be called from any thread; a message is written in one piece.
void log_info(std::string_view message);     // the message as it is
void log_warning(std::string_view message);  // "mlxcel: warning: ..."

// Replaces the sink and returns the one before; an empty sink restores stderr.
LogSink set_log_sink(LogSink sink);

}  // namespace mlxcel
