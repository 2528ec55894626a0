// What a shell can do to a program: closed and full outputs, empty names,
// numbers out of range.
#include "io/safetensors.h"
#include "support/programs/run_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/wait.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace mlxcel {
namespace {

using namespace testing;  // NOLINT
using ::testing::HasSubstr;

// The exit code, 128 + signal when one ended it, of a shell line in which $P
// is the program.
int run_shell(const std::string& line) {
  std::string whole = "P='" MLXCEL_TEST_PROGRAM "'; " + line;
  int status = std::system(whole.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(StandardFiles, MessagesMayHaveNoReader) {
  TemporaryFolder folder;
  write_chain_model(folder.path("model"));
  std::string generate = "$P generate -m " + folder.path("model") +
                         " -p '>' --max-tokens 1 > " + folder.path("out");
  EXPECT_EQ(run_shell(generate + " 2>/dev/full"), 0);
  EXPECT_EQ(run_shell(generate + " 2>&-"), 0);
  std::string text;
  std::getline(std::ifstream(folder.path("out")), text);
  EXPECT_EQ(text, "A");
  EXPECT_EQ(run_shell("$P inspect /nothing 2>&-"), 1);
  EXPECT_EQ(run_shell("$P inspect /nothing 2>/dev/full"), 1);
  EXPECT_EQ(run_shell("$P arch > /dev/full 2>&-"), 1);
}

// Whoever reads the messages may leave; who reads the answer ends the program,
// by SIGPIPE as in any pipe.
TEST(StandardFiles, ReadersMayLeave) {
  TemporaryFolder folder;
  auto code_of = [&](const std::string& command) {
    std::string file = folder.path("code");
    run_shell(
        "{ sleep 0.2; " + command + "; echo $? > " + file + "; } 3>&1 | true");
    int code = -1;
    std::ifstream(file) >> code;
    return code;
  };
  EXPECT_EQ(code_of("$P inspect /nothing 2>&3"), 1);
  EXPECT_EQ(code_of("$P arch"), 141);
}

TEST(StandardFiles, AFullOutputIsNamed) {
  TemporaryFolder folder;
  EXPECT_EQ(run_shell("$P arch > /dev/full 2> " + folder.path("messages")), 1);
  std::string line;
  std::getline(std::ifstream(folder.path("messages")), line);
  EXPECT_THAT(line, HasSubstr("cannot write to standard output"));
}

ProgramResult run_logits(
    const TemporaryFolder& folder, const std::string& output) {
  return run_program(
      {"logits",
       "-m",
       folder.path("model"),
       "--input",
       folder.path("in"),
       "--output",
       folder.path(output)});
}

TEST(Logits, OutputMayNotBeTheInput) {
  TemporaryFolder folder;
  std::ofstream(folder.path("in")) << "kept";
  ProgramResult got = run_logits(folder, "in");
  EXPECT_EQ(got.exit_code, 2);
  EXPECT_THAT(got.err, HasSubstr("--output names"));
  std::string text;
  std::getline(std::ifstream(folder.path("in")), text);
  EXPECT_EQ(text, "kept");
}

// The command line is right, the file is not.
TEST(Logits, ARowThatDoesNotFitIsAFailure) {
  TemporaryFolder folder;
  write_chain_model(folder.path("model"));
  std::byte* data = nullptr;
  WeightTensor ids = make_weight(DType::i32, {1, 3000}, &data);
  std::memset(data, 0, ids.bytes);
  WeightMap tensors;
  tensors.set("input_ids", ids);
  write_safetensors(folder.path("in"), tensors);
  ProgramResult got = run_logits(folder, "out");
  EXPECT_EQ(got.exit_code, 1);
  EXPECT_THAT(got.err, HasSubstr("the context 2048"));
  EXPECT_FALSE(std::filesystem::exists(folder.path("out")));
}

TEST(Arguments, SeedsAreNotCut) {
  for (const char* seed :
       {"99999999999999999999999", "18446744073709551615", "-2", "x", "1.5"}) {
    ProgramResult got = run_program({"generate", "-p", "a", "--seed", seed});
    EXPECT_EQ(got.exit_code, 2) << seed;
    EXPECT_THAT(got.err, HasSubstr("18446744073709551614")) << seed;
  }
  TemporaryFolder folder;
  write_chain_model(folder.path("model"));
  for (const char* seed : {"0", "-1", "18446744073709551614"}) {
    ProgramResult got = run_program(
        {"generate",
         "-m",
         folder.path("model"),
         "-p",
         ">",
         "-n",
         "1",
         "--seed",
         seed});
    EXPECT_EQ(got.exit_code, 0) << seed << got.err;
  }
}

TEST(Arguments, AnEmptyModelIsNotTheDefaultOne) {
  ProgramResult got = run_program({"generate", "-m", "", "-p", "a"});
  EXPECT_EQ(got.exit_code, 2);
  EXPECT_THAT(got.err, HasSubstr("a folder's name is needed"));
  for (const char* command : {"inspect", "arch"}) {
    got = run_program({command, ""});
    EXPECT_EQ(got.exit_code, 2) << command;
    EXPECT_EQ(got.out, "");
    EXPECT_THAT(got.err, HasSubstr("a folder's name is needed"));
  }
}

// As of a shell's variable that is not set.
TEST(Arguments, AnEmptyNameIsNotAnOptionLeftOut) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"generate", "-p", "a", "--grammar", ""}, "a grammar is needed"},
      {{"generate", "-p", "a", "--grammar-file", ""}, "a file's name"},
      {{"generate", "-p", "a", "--json-schema", ""}, "JSON is needed"},
      {{"generate", "-p", "a", "--chat-template-file", ""}, "a file's name"},
      {{"perplexity", "--text", ""}, "a file's name"},
      {{"perplexity", "--text", "a", "--kl-base", ""}, "a file's name"},
      {{"inspect", "--adapter", ""}, "a folder's name"},
      {{"serve", "--slot-save-path", ""}, "a folder's name"},
      {{"serve", "--lora-dir", ""}, "a folder's name"},
      {{"bench", "--shape", ""}, "a name is needed"},
      {{"bench", "--shape", "1b", "--save", ""}, "a folder's name"},
      {{"import-gguf", "", "x"}, "a file's name"},
      {{"convert-adapter", "a", ""}, "a folder's name"}};
  for (const auto& [arguments, message] : cases) {
    ProgramResult got = run_program(arguments);
    EXPECT_EQ(got.exit_code, 2) << message;
    EXPECT_EQ(got.out, "");
    EXPECT_THAT(got.err, HasSubstr(message));
  }
}

TEST(Arguments, AGgufFileIsSentToTheImport) {
  TemporaryFolder folder;
  std::ofstream(folder.path("a.gguf")) << "GGUF";
  ProgramResult got =
      run_program({"generate", "-m", folder.path("a.gguf"), "-p", "a"});
  EXPECT_EQ(got.exit_code, 2);
  EXPECT_THAT(got.err, HasSubstr("mlxcel import-gguf"));
}

TEST(Arguments, ASystemMessageNeedsATemplate) {
  ProgramResult got = run_program(
      {"generate", "-p", "a", "--system", "b", "--no-chat-template"});
  EXPECT_EQ(got.exit_code, 2);
  EXPECT_THAT(got.err, HasSubstr("--no-chat-template"));
}

}  // namespace
}  // namespace mlxcel
