#include "support/fixtures.h"
#include "support/programs/run_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <signal.h>

#include <fstream>

namespace mlxcel::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// One chain model for all tests of this file.
const std::string& chain_model() {
  static TemporaryFolder folder;
  static const std::string path = [] {
    write_chain_model(folder.path("chain"));
    return folder.path("chain");
  }();
  return path;
}

ProgramResult generate(
    const std::string& prompt, std::vector<std::string> more = {}) {
  std::vector<std::string> arguments = {
      "generate",
      "--model",
      chain_model(),
      "--prompt",
      prompt,
      "--max-tokens",
      "40",
      "--no-chat-template"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return run_program(arguments);
}

TEST(Generate, PrintsTheAnswerAloneOnStandardOutput) {
  ProgramResult got = generate("#");
  EXPECT_EQ(got.exit_code, 0) << got.err;
  EXPECT_EQ(got.out, "uvw-klm\n");
  EXPECT_THAT(got.err, HasSubstr("Prompt: 2 tokens"));  // BOS and '#'
  EXPECT_THAT(got.err, HasSubstr("Answer: 8 tokens"));
  EXPECT_THAT(got.err, HasSubstr("Peak memory: "));
}

TEST(Generate, StopStringsEndTheAnswer) {
  struct Case {
    std::vector<std::string> stops;
    std::string text;
  };
  const Case cases[] = {
      {{"w-k"}, "uv\n"},
      {{"w-Q"}, "uvw-klm\n"},
      {{"-k", "w-k"}, "uv\n"},
      {{"klm"}, "uvw-\n"},
      {{"lmX"}, "uvw-klm\n"},
  };
  for (const Case& c : cases) {
    std::vector<std::string> flags;
    for (const std::string& stop : c.stops) {
      flags.push_back("--stop");
      flags.push_back(stop);
    }
    EXPECT_EQ(generate("#", flags).out, c.text)
        << ::testing::PrintToString(c.stops);
  }
  EXPECT_EQ(generate(">", {"--stop", "😀"}).out, "Aé\n");
  EXPECT_EQ(generate(">", {"--stop", "한"}).out, "Aé😀b\n");
}

TEST(Generate, CharactersAreNeverSplit) {
  const std::string whole = "Aé😀b한c.";
  EXPECT_EQ(generate(">").out, whole + "\n");
  EXPECT_EQ(generate("<").out, "X\uFFFDY\n");
  for (int count = 1; count <= 12; ++count) {
    std::string got =
        generate(">", {"--max-tokens", std::to_string(count)}).out;
    ASSERT_TRUE(got.ends_with("\n")) << count;
    got.pop_back();
    // An unfinished character at the limit is left out or shown as one U+FFFD.
    std::string mark = "\uFFFD";
    if (got.ends_with(mark)) {
      got.resize(got.size() - mark.size());
    }
    EXPECT_THAT(whole, StartsWith(got)) << count;
    EXPECT_GE(got.size() + 3, size_t(count)) << count;
  }
}

TEST(Generate, KeepsToAGrammarOrASchema) {
  EXPECT_EQ(
      generate("#", {"--grammar", "root ::= \"yes\" | \"yet\""})
          .out.substr(0, 2),
      "ye");
  EXPECT_EQ(generate("#", {"--grammar", "start: \"a\" \"b\""}).out, "ab\n");
  EXPECT_EQ(
      generate("#", {"--json-schema", R"({"const": "x"})"}).out, "\"x\"\n");
  TemporaryFolder folder;
  std::ofstream(folder.path("g.gbnf")) << "root ::= [q]{3}\n";
  EXPECT_EQ(
      generate("#", {"--grammar-file", folder.path("g.gbnf")}).out, "qqq\n");

  ProgramResult got = generate("#", {"--json-schema", R"({"type": "strin"})"});
  EXPECT_EQ(got.exit_code, 2);
  EXPECT_EQ(got.out, "");
  EXPECT_THAT(got.err, HasSubstr("at /type: there is no type \"strin\""));
  got = generate("#", {"--grammar", "root ::= x", "--json-schema", "{}"});
  EXPECT_EQ(got.exit_code, 2);
}

// A thought that the template opens goes first, as it likes, and does not end
// the answer.
TEST(Generate, KeepsToASchemaBehindTheThought) {
  TemporaryFolder folder;
  std::ofstream(folder.path("template")) << "{{ bos_token }}<think>";
  ProgramResult got = run_program(
      {"generate",
       "--model",
       chain_model(),
       "--chat-template-file",
       folder.path("template"),
       "--prompt",
       "",
       "--max-tokens",
       "40",
       "--show-reasoning",
       "--json-schema",
       R"({"const": "x"})"});
  EXPECT_EQ(got.exit_code, 0) << got.err;
  EXPECT_THAT(got.out, StartsWith("Aé😀b한c."));
  EXPECT_THAT(got.err, HasSubstr("Answer: 40 tokens"));
}

TEST(Generate, ReadsThePromptFromStandardInput) {
  std::vector<std::string> base = {
      "generate", "--model", chain_model(), "--no-chat-template"};
  EXPECT_EQ(run_program(base, {.text = "#\n"}).out, "uvw-klm\n");
  base.insert(base.end(), {"-p", "-"});
  EXPECT_EQ(run_program(base, {.text = "#"}).out, "uvw-klm\n");
}

// The command line is right, what it names is not.
TEST(Generate, APromptThatDoesNotFitIsAFailure) {
  ProgramResult got = generate(std::string(3000, 'a'));
  EXPECT_EQ(got.exit_code, 1);
  EXPECT_THAT(got.err, HasSubstr("the context 2048"));
}

TEST(Generate, UsesTheChatTemplateByDefault) {
  ProgramResult got = run_program(
      {"generate", "--model", chain_model(), "--system", "ab", "-p", "#"});
  EXPECT_EQ(got.out, "uvw-klm\n");
  EXPECT_THAT(got.err, HasSubstr("Prompt: 4 tokens"));  // one BOS, ab, #
}

TEST(Generate, TakesAnotherChatTemplate) {
  TemporaryFolder folder;
  std::ofstream(folder.path("template")) << "{{ bos_token }}xy>";
  std::vector<std::string> base = {
      "generate",
      "--model",
      chain_model(),
      "-p",
      "#",
      "--chat-template-file",
      folder.path("template")};
  ProgramResult got = run_program(base);
  EXPECT_EQ(got.out, "Aé😀b한c.\n") << got.err;
  EXPECT_THAT(got.err, HasSubstr("Prompt: 4 tokens"));
  base.back() = folder.path("absent");
  got = run_program(base);
  EXPECT_EQ(got.exit_code, 1);
  EXPECT_THAT(got.err, HasSubstr(folder.path("absent")));
  base.push_back("--no-chat-template");
  EXPECT_EQ(run_program(base).exit_code, 2);
}

TEST(Generate, RefusesTemplateVariablesNestedTooDeeply) {
  // As deep as the system lets an argument be.
  std::string deep(60000, '[');
  ProgramResult got = run_program(
      {"generate",
       "--model",
       chain_model(),
       "-p",
       "#",
       "--chat-template-kwargs",
       "{\"a\":" + deep + std::string(deep.size(), ']') + "}"});
  EXPECT_EQ(got.exit_code, 2);
  EXPECT_THAT(got.err, HasSubstr("wrong --chat-template-kwargs"));
}

TEST(Generate, SeedMinusOneIsAnotherOneEachRun) {
  auto sample = [] {
    return generate(
               "#",
               {"--temp", "1000", "--seed", "-1", "--logit-bias", "257=-inf"})
        .out;
  };
  EXPECT_NE(sample(), sample());
}

TEST(Generate, SeedsRepeat) {
  auto sample = [](const char* seed) {
    return generate(
               "#",
               {"--temp",
                "1000",
                "--seed",
                seed,
                "--logit-bias",
                "257=-inf",
                "--max-tokens",
                "12"})
        .out;
  };
  EXPECT_EQ(sample("1"), sample("1"));
  EXPECT_NE(sample("1"), sample("2"));
}

TEST(Generate, AGrammarGivenWrongIsAUsageError) {
  TemporaryFolder folder;
  write_chain_model(folder.path("model"));
  for (const auto& [flag, value] :
       {std::pair{"--json-schema", "{"},
        {"--json-schema", R"({"type": "nothing"})"},
        {"--grammar", "root ::= ("}}) {
    ProgramResult got = run_program(
        {"generate", "-m", folder.path("model"), "-p", "#", flag, value});
    EXPECT_EQ(got.exit_code, 2) << value;
    EXPECT_EQ(got.out, "");
  }
  ProgramResult got = run_program(
      {"generate", "-m", "/nothing", "-p", "#", "--json-schema", "{"});
  EXPECT_THAT(got.err, HasSubstr("wrong --json-schema '{': it is not valid"));
}

// A speed needs something done and time that it took.
TEST(Generate, NoSpeedOfNothing) {
  TemporaryFolder folder;
  write_chain_model(folder.path("model"));
  for (const char* count : {"0", "1"}) {
    ProgramResult got = run_program(
        {"generate", "-m", folder.path("model"), "-p", "#", "-n", count});
    EXPECT_EQ(got.exit_code, 0);
    EXPECT_THAT(
        got.err,
        HasSubstr(std::string("Answer: ") + count + " tokens | Peak memory"));
  }
}

TEST(Generate, EmptyAnswersAndLimits) {
  EXPECT_EQ(generate("?").out, "\n");
  EXPECT_EQ(generate("#", {"--max-tokens", "0"}).out, "\n");
  EXPECT_EQ(generate("#", {"--max-tokens", "2"}).out, "uv\n");
}

TEST(Generate, CtrlCEndsCleanlyWithTheLastLine) {
  // Without an end token the model runs on until it is stopped.
  ProgramResult got = run_program(
      {"generate",
       "--model",
       chain_model(),
       "--no-chat-template",
       "-p",
       "#",
       "--logit-bias",
       "257=-inf",
       "--temp",
       "1000"},
      {.signal = SIGINT, .signal_after = 3});
  EXPECT_EQ(got.exit_code, 130);
  EXPECT_THAT(got.out, ::testing::EndsWith("\n"));
  EXPECT_THAT(got.err, HasSubstr("Peak memory: "));
}

TEST(Generate, OtherArithmeticAndSettingsGiveTheSameAnswer) {
  for (const std::vector<std::string>& flags :
       std::vector<std::vector<std::string>>{
           {"--threads", "1"},
           {"--no-mmap"},
           {"--prefill-int8"},
           {"--deterministic"},
           {"--backend", "cpu"},
           {"--dtype", "bf16"},
           {"--dtype", "f16"}}) {
    ProgramResult got = generate("#", flags);
    EXPECT_EQ(got.out, "uvw-klm\n")
        << ::testing::PrintToString(flags) << got.err;
  }
}

TEST(Generate, EstimatesMemoryWithoutRunning) {
  ProgramResult got =
      run_program({"generate", "--model", chain_model(), "--estimate-memory"});
  EXPECT_EQ(got.exit_code, 0) << got.err;
  EXPECT_THAT(got.out, HasSubstr("Estimated memory: "));
  EXPECT_THAT(got.out, HasSubstr("weights 2.2 MB"));
}

TEST(Generate, UsageErrorsExitWithTwoAndNameTheFlag) {
  struct Case {
    std::vector<std::string> flags;
    std::string message;
  };
  const Case cases[] = {
      {{"--top-p", "2"}, "invalid top-p: 2 is outside its range"},
      {{"--temp", "nan"}, "invalid temperature"},
      {{"--temp", "warm"}, "--temp"},
      {{"--max-tokens", "-2"}, "--max-tokens"},
      {{"--stop", ""}, "empty stop string"},
      {{"--dry-sequence-breaker", ""}, "empty DRY sequence breaker"},
      {{"--logit-bias", "x=1"}, "wrong --logit-bias x=1"},
      {{"--draft-model", "d"}, "--draft-model is not built yet"},
      {{"--kv-bits", "4"}, "--kv-bits is not built yet"},
      {{"--tp-size", "2"}, "--tp-size is not built yet"},
      {{"--image", "a.png"}, "--image is not built yet"},
      {{"--backend", "gpu"}, "--backend"},
      {{"--tempp", "1"}, "did you mean --temp"},
      {{"--lora-scaled", "dir"}, "there is no number after a last colon"},
      {{"--lora-scaled", "dir:abc"}, "'abc' is not a finite number"},
      {{"--lora-scaled", "dir:nan"}, "'nan' is not a finite number"},
      {{"--lora-scaled", "a:1,dir:inf"}, "'inf' is not a finite number"},
      {{"--adapter", "a,,b"}, "an entry without a folder"},
      {{"--chat-template-kwargs", "[1]"}, "no JSON object"},
      {{"--chat-template-kwargs", "{\"messages\": []}"}, "'messages'"},
      {{"--chat-template-kwargs", "{\"eos_token\": \"\"}"}, "'eos_token'"},
  };
  for (const Case& c : cases) {
    ProgramResult got = generate("#", c.flags);
    EXPECT_EQ(got.exit_code, 2) << ::testing::PrintToString(c.flags) << got.err;
    EXPECT_EQ(got.out, "");
    EXPECT_THAT(got.err, StartsWith("mlxcel: error: "));
    EXPECT_THAT(got.err, HasSubstr(c.message));
  }
  // The values that change nothing pass.
  EXPECT_EQ(
      generate("#", {"--kv-bits", "0", "--tp-size", "1", "--fps", "2.0"}).out,
      "uvw-klm\n");
}

TEST(Generate, AMissingModelIsAPlainFailure) {
  ProgramResult got =
      run_program({"generate", "--model", "/nowhere/at-all", "--prompt", "x"});
  EXPECT_EQ(got.exit_code, 1);
  EXPECT_THAT(got.err, StartsWith("mlxcel: error: no model /nowhere/at-all"));

  TemporaryFolder empty;
  got = run_program(
      {"generate", "--prompt", "x"},
      {.environment = {"MLXCEL_CACHE_DIR=" + empty.path()}});
  EXPECT_EQ(got.exit_code, 1);
  EXPECT_THAT(got.err, HasSubstr("./dev model"));
}

TEST(Generate, FindsModelsInTheStoreByName) {
  TemporaryFolder cache;
  write_chain_model(cache.path("models/owner/tiny"));
  write_chain_model(cache.path("models/SmolLM2-135M-Instruct"));
  ProgramInput input{.environment = {"MLXCEL_CACHE_DIR=" + cache.path()}};
  EXPECT_EQ(
      run_program({"generate", "-m", "owner/tiny", "-p", "#"}, input).out,
      "uvw-klm\n");
  EXPECT_EQ(run_program({"generate", "-p", "#"}, input).out, "uvw-klm\n");
  input.environment.push_back("MLXCEL_DEFAULT_ORG=owner");
  EXPECT_EQ(
      run_program({"generate", "-m", "tiny", "-p", "#"}, input).out,
      "uvw-klm\n");
}

TEST(Generate, APackedCheckpointRefusesFusedAdapters) {
  std::string lora = fixture_root() / "lora";
  ProgramResult got = run_program(
      {"generate",
       "--model",
       lora + "/bases/llama_tied_q",
       "--adapter",
       lora + "/adapters/q_embed",
       "--prompt",
       "x"});
  EXPECT_EQ(got.exit_code, 1);
  EXPECT_EQ(got.out, "");
  EXPECT_THAT(got.err, HasSubstr("--lora"));
}

TEST(Run, ChatsWithHistoryAndCommands) {
  ProgramResult got = run_program(
      {"run", "--model", chain_model()},
      {.text = "#\n/help\n\"\"\"a\n#\"\"\"\n/clear\n>\n/nonsense\n/bye\n#\n"});
  EXPECT_EQ(got.exit_code, 0) << got.err;
  EXPECT_EQ(got.out, "uvw-klm\nuvw-klm\nAé😀b한c.\n");
  EXPECT_THAT(got.err, HasSubstr("/clear"));
  EXPECT_THAT(got.err, HasSubstr("Unknown command /nonsense"));
}

TEST(Run, GoesOnAfterAMessageThatDoesNotFit) {
  std::string messages = "#\n" + std::string(3000, 'a') + "\n#\n/clear\n>\n";
  ProgramResult got =
      run_program({"run", "--model", chain_model()}, {.text = messages});
  EXPECT_EQ(got.exit_code, 1);
  EXPECT_EQ(got.out, "uvw-klm\nuvw-klm\nAé😀b한c.\n");
  EXPECT_THAT(got.err, HasSubstr("longer than the context"));
  EXPECT_THAT(got.err, HasSubstr("the context 2048"));
  EXPECT_THAT(got.err, HasSubstr("/clear"));
}

TEST(Run, EndsWithTheInput) {
  ProgramResult got =
      run_program({"run", "--model", chain_model()}, {.text = "#"});
  EXPECT_EQ(got.exit_code, 0) << got.err;
  EXPECT_EQ(got.out, "uvw-klm\n");
}

}  // namespace
}  // namespace mlxcel::testing
