// Runs the built program as a user does.
#pragma once

#include <string>
#include <vector>

namespace mlxcel::testing {

struct ProgramResult {
  int exit_code = -1;  // 128 + signal when one ended it
  std::string out, err;
};

struct ProgramInput {
  std::string text;  // on standard input
  // Environment variables beside the test's own, "NAME=VALUE".
  std::vector<std::string> environment;
  // Sent once standard output has this many bytes; 0: never.
  int signal = 0;
  size_t signal_after = 1;
};

// MLXCEL_TEST_PROGRAM with these arguments. Throws when it cannot be started.
ProgramResult run_program(
    const std::vector<std::string>& arguments, const ProgramInput& input = {});

// A folder that is empty at the start of the test and goes with it.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  std::string path(const std::string& name = "") const;

 private:
  std::string path_;
};

// A llama with a token a byte, whose greedy answers walk fixed chains:
// '>' -> "Aé😀b한c.", '<' -> bytes 58 85 59, '#' -> "uvw-klm", each then ends.
// Every other byte is followed by the end token. Encoding puts a BOS in front,
// and the chat template writes the messages' text after a BOS.
void write_chain_model(const std::string& folder);

// Two layers of random weights over the same tokenizer, f32. Only printable
// bytes can win, so that greedy answers are readable and never end by
// themselves.
void write_random_model(const std::string& folder);
// A LoRA adapter for it that changes its answers.
void write_random_adapter(const std::string& folder, int seed);

}  // namespace mlxcel::testing
