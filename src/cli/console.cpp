#include "cli/console.h"

#include "core/error.h"
#include "io/output_target.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace mlxcel::cli {

namespace {

std::atomic<bool> interrupt_flag{false};
std::atomic<bool> progress_shown{false};

void on_interrupt(int) {
  if (interrupt_flag.exchange(true)) {
    _exit(130);
  }
}

}  // namespace

// Nobody can be told that this fails: whoever reads the messages is gone.
void write_message(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
}

void end_by_broken_pipe() {
  std::signal(SIGPIPE, SIG_DFL);
  std::raise(SIGPIPE);
}

void keep_standard_files_open() {
  // A reader of messages that is gone ends nothing; one of answers does, when
  // they are written.
  std::signal(SIGPIPE, SIG_IGN);
  // Else the next file that is opened, a checkpoint, would take the place.
  // Writing to what is opened for reading fails, as it should.
  for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF &&
        ::open("/dev/null", O_RDONLY) != fd) {
      std::abort();
    }
  }
}

void print_error(std::string_view message) {
  clear_progress();
  std::fflush(stdout);
  write_message(cat("mlxcel: error: ", message, "\n"));
}

void print_warning(std::string_view message) {
  clear_progress();
  write_message(cat("mlxcel: warning: ", message, "\n"));
}

void print_note(std::string_view line) {
  clear_progress();
  write_message(cat(line, "\n"));
}

void write_out(std::string_view text) {
  std::fflush(stdout);  // what others have printed comes first
  while (!text.empty()) {
    ssize_t count = ::write(STDOUT_FILENO, text.data(), text.size());
    if (count >= 0) {
      text.remove_prefix(size_t(count));
    } else if (errno == EPIPE) {
      end_by_broken_pipe();
    } else if (errno != EINTR) {
      throw Error(
          "cannot write to standard output",
          std::strerror(errno),
          "free space, or keep the reader of the pipe open");
    } else if (interrupt_flag) {
      return;  // a full pipe must not hold up Ctrl-C
    }
  }
}

void check_output(
    const std::string& flag,
    const std::filesystem::path& output,
    const std::vector<std::filesystem::path>& inputs) {
  std::filesystem::path target = output_target(output).path;
  for (const std::filesystem::path& input : inputs) {
    std::error_code error;
    if (std::filesystem::equivalent(input, target, error)) {
      throw UsageError(
          cat(flag, " names ", input.string(), ", which is read"),
          "the output would take its place",
          "name another file");
    }
  }
}

std::function<void(std::string_view, double)> load_progress() {
  if (!isatty(STDERR_FILENO) || std::getenv("MLXCEL_NO_PROGRESS")) {
    return nullptr;
  }
  return [last = std::string()](std::string_view phase, double done) mutable {
    std::string line = fmt::format("{} {:3.0f}%", phase, done * 100);
    // A model has thousands of steps; a terminal needs the hundred that show.
    if (progress_shown.exchange(true) && line == last) {
      return;
    }
    write_message(cat("\r\033[K", line));
    std::fflush(stderr);
    last = std::move(line);
  };
}

void clear_progress() {
  if (progress_shown.exchange(false)) {
    write_message("\r\033[K");
    std::fflush(stderr);
  }
}

const std::atomic<bool>& catch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = on_interrupt;
  sigemptyset(&action.sa_mask);
  // No SA_RESTART: a read of the terminal has to return.
  sigaction(SIGINT, &action, nullptr);
  return interrupt_flag;
}

void clear_interrupt() {
  interrupt_flag = false;
}

uint64_t peak_memory_bytes() {
  // /proc resets the mark with the address space; getrusage keeps that of the
  // program which started this one.
  if (std::FILE* status = std::fopen("/proc/self/status", "r")) {
    char line[256];
    unsigned long long kib = 0;
    while (std::fgets(line, sizeof line, status)) {
      if (std::sscanf(line, "VmHWM: %llu kB", &kib) == 1) {
        break;
      }
    }
    std::fclose(status);
    if (kib > 0) {
      return kib * 1024;
    }
  }
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
#ifdef __APPLE__
  return uint64_t(usage.ru_maxrss);
#else
  return uint64_t(usage.ru_maxrss) * 1024;
#endif
}

std::string format_bytes(double bytes) {
  const char* units[] = {"B", "kB", "MB", "GB", "TB"};
  size_t unit = 0;
  while (bytes >= 1000 && unit + 1 < std::size(units)) {
    bytes /= 1000;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes)
                   : fmt::format("{:.1f} {}", bytes, units[unit]);
}

std::string read_stdin() {
  std::string text;
  char buffer[65536];
  for (;;) {
    ssize_t count = read(STDIN_FILENO, buffer, sizeof buffer);
    if (count < 0 && errno == EINTR && !interrupt_flag) {
      continue;
    }
    if (count < 0) {
      throw Error(
          "cannot read standard input",
          std::strerror(errno),
          "give the prompt with --prompt");
    }
    if (count == 0) {
      return text;
    }
    text.append(buffer, size_t(count));
  }
}

bool stdin_is_terminal() {
  return isatty(STDIN_FILENO) != 0;
}

}  // namespace mlxcel::cli
