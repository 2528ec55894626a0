// The terminal side of the commands: messages and progress on standard error,
// answers on standard output, Ctrl-C, and what the process used.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace mlxcel::cli {

// Opens what of standard input, output and error the process was started
// without, so that no other file gets their number, and outlives its readers.
void keep_standard_files_open();

// Ends the process as programs in pipes end whose reader is gone.
void end_by_broken_pipe();

// Text on standard error; never fails.
void write_message(std::string_view text);
// "mlxcel: error: ..." and "mlxcel: warning: ..." on standard error.
void print_error(std::string_view message);
void print_warning(std::string_view message);
// One plain line on standard error.
void print_note(std::string_view line);

// Writes an answer's text at once. Throws Error when standard output is closed
// or full.
void write_out(std::string_view text);

// Throws before the work what would be thrown after it: a file of this name
// cannot be written, or is one of those that are read.
void check_output(
    const std::string& flag,
    const std::filesystem::path& output,
    const std::vector<std::filesystem::path>& inputs);

// A callback for LoadOptions::progress: one line that rewrites itself, only
// when standard error is a terminal and MLXCEL_NO_PROGRESS is not set; else
// null.
std::function<void(std::string_view phase, double done)> load_progress();
void clear_progress();

// From here on Ctrl-C sets the flag; a second one while it is set ends the
// process.
const std::atomic<bool>& catch_interrupts();
void clear_interrupt();

uint64_t peak_memory_bytes();            // the process's greatest resident set
std::string format_bytes(double bytes);  // "181.2 MB", powers of 1000

std::string read_stdin();
bool stdin_is_terminal();

}  // namespace mlxcel::cli
