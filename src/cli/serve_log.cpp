#include "cli/serve_log.h"

#include "cli/console.h"
#include "core/error.h"
#include "core/log.h"

#include <CLI/CLI.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <ctime>
#include <memory>
#include <system_error>
#include <utility>

namespace mlxcel::cli {

namespace {

// 2026-01-31T12:00:00.123Z
std::string utc_now() {
  auto now = std::chrono::system_clock::now();
  std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(
                now.time_since_epoch())
                .count() %
            1000;
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[32];
  size_t size = std::strftime(text, sizeof text, "%FT%T", &parts);
  return fmt::format("{}.{:03}Z", std::string_view(text, size), ms);
}

class LogFile {
 public:
  explicit LogFile(const std::string& path)
      : path_(path),
        descriptor_(::open(
            path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600)) {
    // One that was there keeps its content, not its readers; a device keeps
    // both.
    struct stat info{};
    bool file = descriptor_ >= 0 && ::fstat(descriptor_, &info) == 0 &&
                S_ISREG(info.st_mode);
    if (descriptor_ < 0 || (file && ::fchmod(descriptor_, 0600) != 0)) {
      int error = errno;
      if (descriptor_ >= 0) {
        ::close(descriptor_);
      }
      throw Error(
          cat("cannot write the log file ", path),
          std::error_code(error, std::generic_category()).message(),
          "give --log-file a path in a folder that this user may write");
    }
  }
  ~LogFile() {
    ::close(descriptor_);
  }
  LogFile(const LogFile&) = delete;
  LogFile& operator=(const LogFile&) = delete;

  // A full disk must not end the server: what cannot be written is lost. One
  // call at a time.
  void write(std::string_view text) {
    while (!text.empty()) {
      ssize_t count = ::write(descriptor_, text.data(), text.size());
      if (count < 0 && errno == EINTR) {
        continue;
      }
      if (count <= 0) {
        tell_of_loss(count < 0 ? errno : ENOSPC);
        return;
      }
      text.remove_prefix(size_t(count));
    }
    losing_ = false;
  }

 private:
  // Once, until lines can be written again.
  void tell_of_loss(int error) {
    if (!std::exchange(losing_, true)) {
      std::string line =
          cat("mlxcel: warning: cannot write to the log file ",
              path_,
              ": ",
              std::error_code(error, std::generic_category()).message(),
              "; its lines are lost until that is mended\n");
      std::fwrite(line.data(), 1, line.size(), stderr);
    }
  }

  std::string path_;
  int descriptor_;
  bool losing_ = false;
};

bool wants_colors(const std::string& colors) {
  bool plain = std::getenv("NO_COLOR") != nullptr;  // https://no-color.org
  return colors == "on" ||
         (colors == "auto" && !plain && ::isatty(STDERR_FILENO) != 0);
}

std::string line_of(
    const LogFlags& flags, LogLevel level, std::string_view message) {
  bool warning = level == LogLevel::warning;
  if (flags.json && message.starts_with('{')) {
    return cat(message, "\n");  // a program reads it
  }
  std::string line;
  if (flags.timestamps) {
    line += utc_now() + " ";
  }
  if (flags.prefix) {
    line += warning ? "W " : "I ";
  }
  return line + cat(warning ? "mlxcel: warning: " : "", message, "\n");
}

}  // namespace

void declare_log_options(CLI::App& app, LogFlags& flags) {
  auto group = [](CLI::Option* option) { option->group("Log"); };
  group(app.add_flag(
      "--log-json", flags.json, "Write the access log as JSON lines"));
  group(app.add_flag("--log-disable", flags.disabled, "No access log"));
  group(app.add_option(
               "--log-file",
               flags.file,
               "Write the log to this file too; only its owner may read it")
            ->type_name("FILE"));
  group(app.add_option(
               "--log-colors",
               flags.colors,
               "Warnings in colour: on, which the bare option means, off or "
               "auto")
            ->check(CLI::IsMember({"on", "off", "auto"}))
            ->capture_default_str());
  group(app.add_flag(
      "--log-prefix,!--no-log-prefix",
      flags.prefix,
      "I for notices and W for warnings in front of lines"));
  group(app.add_flag(
      "--log-timestamps,!--no-log-timestamps",
      flags.timestamps,
      "The time, UTC, in front of lines"));
  group(app.add_flag(
      "-v,--verbose,--log-verbose", flags.verbose, "As --log-verbosity 4"));
  group(app.add_option(
               "--log-verbosity,--verbosity",
               flags.verbosity,
               "3: all; 2: no notices and requests; 1: no warnings; 4: more "
               "about the start")
            ->check(CLI::Range(0, 1 << 30))
            ->capture_default_str());
}

void start_log(const LogFlags& flags) {
  std::shared_ptr<LogFile> file;
  if (!flags.file.empty()) {
    file = std::make_shared<LogFile>(flags.file);
  }
  bool colors = wants_colors(flags.colors);
  int verbosity = flags.verbose ? 4 : flags.verbosity;
  set_log_sink([flags, file, colors, verbosity](
                   LogLevel level, std::string_view message) {
    if (verbosity < (level == LogLevel::warning ? 2 : 3)) {
      return;
    }
    clear_progress();
    std::string line = line_of(flags, level, message);
    if (colors && level == LogLevel::warning) {
      std::fputs("\033[33m", stderr);
    }
    std::fwrite(line.data(), 1, line.size(), stderr);
    if (colors && level == LogLevel::warning) {
      std::fputs("\033[0m", stderr);
    }
    if (file) {
      file->write(line);
    }
  });
}

}  // namespace mlxcel::cli
