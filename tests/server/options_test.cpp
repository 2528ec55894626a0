// The server's options, group by group as its documentation lists them, and
// their names in the environment.
#include "server/running_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string_view>

namespace mlxcel {
namespace {

using testing::ProgramResult;
using testing::TemporaryFolder;
using Words = std::vector<std::string>;

// An option with a value, and what a refusal says; empty: it is accepted.
struct Row {
  Words words;
  const char* says = "";
};

struct OptionsTable : ::testing::Test {
  static void SetUpTestSuite() {
    folder = new TemporaryFolder();
    testing::write_chain_model(folder->path("chain"));
  }
  static void TearDownTestSuite() {
    delete folder;
    folder = nullptr;
  }
  // Everything is checked before the estimate is printed.
  static ProgramResult start(Words words) {
    Words all = {
        "serve", "--model", folder->path("chain"), "--estimate-memory"};
    all.insert(all.end(), words.begin(), words.end());
    return testing::run_program(all);
  }
  static void check(const std::vector<Row>& rows) {
    for (const Row& row : rows) {
      SCOPED_TRACE(::testing::PrintToString(row.words));
      ProgramResult result = start(row.words);
      if (*row.says == '\0') {
        EXPECT_EQ(result.exit_code, 0) << result.err;
      } else {
        EXPECT_EQ(result.exit_code, 2) << result.err;
        EXPECT_THAT(result.err, ::testing::HasSubstr(row.says));
        // By its own name.
        std::string name = row.words[0].substr(0, row.words[0].find('='));
        EXPECT_THAT(result.err, ::testing::HasSubstr(name));
      }
    }
  }
  static TemporaryFolder* folder;
};
TemporaryFolder* OptionsTable::folder = nullptr;

constexpr const char* kUnbuilt = "is not built yet";

TEST_F(OptionsTable, IdentityAndNetwork) {
  check(
      {{{"-a", "name"}},
       {{"--alias", "name"}},
       {{"--api-key", "k", "--api-key", "l"}},
       {{"--api-key-file", folder->path("missing")},
        "cannot read the API keys"},
       {{"--api-prefix", "/llm"}},
       {{"--allowed-origins", "https://a.example,*"}},
       {{"--cors-origins", "https://a.example"}},
       {{"--cors-methods", "GET,POST"}},
       {{"--cors-headers", "x-a"}},
       {{"--cors-credentials"}},
       {{"--cors-max-age", "10"}},
       {{"--ssl-cert-file", "a.pem", "--ssl-key-file", "b.pem"}},
       {{"--ssl-cert-file", "a.pem"}, "belong together"},
       {{"--timeout", "600"}},
       {{"--timeout", "0"}, "Value 0 not in range"},
       {{"-to", "600"}},
       {{"--threads-http", "4"}},
       {{"--reuse-port"}},
       {{"--sse-ping-interval", "30"}},
       {{"--host", "localhost"}},
       {{"--host", "[::1]"}},
       {{"--host", ""}, "--host is empty"},
       {{"--port", "70000"}, "70000 not in range"}});
}

TEST_F(OptionsTable, ContextAndSlots) {
  check(
      {{{"-c", "0"}},
       {{"--ctx-size", "4096"}},
       {{"--ctx-size", "-5"}, "--ctx-size"},
       {{"--parallel", "-1"}},
       {{"-np", "4"}},
       {{"--parallel", "0"}, "wrong --parallel 0"},
       {{"-n", "-1"}},
       {{"--predict", "20"}},
       {{"--n-predict", "20"}},
       {{"--keep", "-1"}},
       {{"--context-shift"}},
       {{"--no-context-shift"}},
       {{"--max-kv-size", "0"}},
       {{"--max-kv-size", "1024"}}});
}

TEST_F(OptionsTable, Batching) {
  check(
      {{{"--max-batch-size", "8"}},
       {{"--no-batch"}},
       {{"--cont-batching"}},
       {{"-cb"}},
       {{"--no-cont-batching"}},
       {{"-nocb"}},
       {{"--max-queue-depth", "32"}},
       {{"-b", "2048"}},
       {{"--batch-size", "2048"}},
       {{"-ub", "512"}},
       {{"--ubatch-size", "512"}},
       {{"--prefill-chunk-size", "2048"}},
       {{"--prefill-chunk-size", "0"}, "--prefill-chunk-size"},
       {{"--max-batch-prefill", "4"}},
       {{"--max-batch-prefill-tokens", "4096"}},
       {{"--prefill-grant-interval", "16"}},
       {{"--prefill-grant-interval", "0"}, "--prefill-grant-interval"},
       {{"--enable-preemption"}},
       {{"--preemption-policy", "longest-first"}},
       {{"--preemption-policy", "youngest-first"}},
       {{"--preemption-policy", "random"}, "--preemption-policy"},
       {{"--decode-timeout", "600"}}});
}

TEST_F(OptionsTable, MemoryOfKeysAndValues) {
  check(
      {{{"--kv-cache-budget", "auto"}},
       {{"--kv-cache-budget", "4GiB"}},
       {{"--kv-cache-budget", "lots"}, "wrong --kv-cache-budget"},
       {{"--kv-admission-watermark", "0.01"}},
       {{"--kv-admission-watermark", "2"}, "--kv-admission-watermark"},
       {{"--decode-storage-backend", "auto"}},
       {{"--decode-storage-backend", "paged"}},
       {{"--decode-storage-backend", "dense"}, kUnbuilt}});
}

TEST_F(OptionsTable, SamplingDefaults) {
  check(
      {{{"--temp", "0.8"}},
       {{"--top-k", "40"}},
       {{"--top-p", "0.95"}},
       {{"--min-p", "0.05"}},
       {{"--seed", "-1"}},
       {{"--repeat-last-n", "64"}},
       {{"--repeat-penalty", "1.0"}},
       {{"--presence-penalty", "0"}},
       {{"--frequency-penalty", "0"}},
       {{"--dry-multiplier", "0"}},
       {{"--dry-base", "1.75"}},
       {{"--dry-allowed-length", "2"}},
       {{"--dry-penalty-last-n", "64"}}});
}

TEST_F(OptionsTable, TemplatesAndReasoning) {
  check(
      {{{"--chat-template", "{{ messages[0].content }}"}},
       {{"--chat-template", "chatml"},
        "names of built-in templates are not known here"},
       {{"--chat-template-file", "t.jinja"}},
       {{"--chat-template-kwargs", "{\"a\": 1}"}},
       {{"--skip-chat-parsing"}},
       {{"--prefill-assistant"}},
       {{"--no-prefill-assistant"}},
       {{"--reasoning-format", "none"}},
       {{"--reasoning-format", "deepseek"}},
       {{"--reasoning-format", "deepseek-legacy"}},
       {{"--reasoning-format", "auto"}},
       {{"--reasoning", "on"}},
       {{"--reasoning", "off"}},
       {{"--reasoning", "auto"}},
       {{"--reasoning", "maybe"}, "--reasoning"},
       {{"--reasoning-effort", "low"}},
       {{"--reasoning-budget", "-1"}},
       {{"--reasoning-budget", "100"}},
       {{"--reasoning-alias-field", "reasoning"}},
       {{"--reasoning-alias-field", "none"}},
       {{"--reasoning-alias-field", "x"}, "--reasoning-alias-field"}});
}

TEST_F(OptionsTable, Constraints) {
  check(
      {{{"--grammar", "root ::= \"a\""}},
       {{"--grammar-file", "g"}},
       {{"--json-schema", "{}"}},
       {{"-j", "{}"}},
       {{"--json-schema-file", "s"}},
       {{"-jf", "s"}}});
}

TEST_F(OptionsTable, PromptAndBlockCaches) {
  check(
      {{{"--cache-prompt"}},
       {{"--no-cache-prompt"}},
       {{"--prompt-cache-enabled", "true"}},
       {{"--prompt-cache-enabled"}},
       {{"--prompt-cache-enabled=false"}},
       {{"--prompt-cache-enabled", "perhaps"}, "--prompt-cache-enabled"},
       {{"--no-prompt-cache"}},
       {{"--prompt-cache-capacity-bytes", "2147483648"}},
       {{"--prompt-cache-max-entries", "1024"}},
       {{"--prompt-cache-ttl", "3600"}},
       {{"--prompt-cache-min-prefix", "32"}},
       {{"--snapshot-cache-enabled", "false"}},
       {{"--snapshot-cache-capacity-bytes", "512MiB"}},
       {{"--snapshot-cache-max-entries", "4096"}},
       {{"--snapshot-cache-ttl", "7200"}},
       {{"--snapshot-cache-min-prefix", "32"}},
       {{"--cache-ram", "8192"}},
       {{"-cram", "-1"}},
       {{"--cache-reuse", "0"}},
       {{"--cache-reuse", "256"}, kUnbuilt},
       {{"--apc-enabled", "true"}},
       {{"--apc-enabled", "false"}},
       {{"--apc-block-size", "16"}},
       {{"--apc-num-blocks", "100"}},
       {{"--apc-hash", "sha256"}},
       {{"--apc-hash", "blake3"}},
       {{"--apc-hash", "md5"}, "--apc-hash"},
       {{"--enable-vlm-prefix-cache", "true"}, kUnbuilt}});
}

TEST_F(OptionsTable, RoutesLogAndStart) {
  check(
      {{{"--slots"}},
       {{"--no-slots"}},
       {{"--slot-save-path", folder->path("")}},
       {{"--props"}},
       {{"--metrics"}},
       {{"--metrics-port", "0"}},
       {{"--log-file", folder->path("log")}},
       {{"--log-disable"}},
       {{"--log-colors"}},
       {{"--log-colors", "off"}},
       {{"--log-colors", "red"}, "--log-colors"},
       {{"--log-prefix"}},
       {{"--log-timestamps"}},
       {{"--log-json"}},
       {{"-v"}},
       {{"-lv", "3"}},
       {{"--warmup"}},
       {{"--no-warmup"}},
       {{"--sleep-idle-seconds", "-1"}},
       {{"--sleep-idle-seconds", "60"}},
       {{"--settings"}, kUnbuilt}});
}

TEST_F(OptionsTable, Positions) {
  check(
      {{{"--rope-scaling", "none"}},
       {{"--rope-scaling", "linear", "--rope-scale", "2"}},
       {{"--rope-scaling", "yarn"}, "yarn is not built yet"},
       {{"--rope-scaling", "none", "--rope-scale", "2"}, "takes no factor"},
       {{"--rope-scale", "2"}},
       {{"--rope-scale", "-1"}, "--rope-scale"},
       {{"--rope-freq-base", "10000"}},
       {{"--rope-freq-scale", "0.5"}},
       {{"--rope-scale", "2", "--rope-freq-scale", "0.5"},
        "exclude each other"}});
}

TEST_F(OptionsTable, WhatIsNotBuiltIsNamed) {
  check({// draft
         {{"--draft-model", "x"}, kUnbuilt},
         {{"--draft-max", "8"}, kUnbuilt},
         {{"--draft-max", "16"}},
         {{"--draft", "16"}},
         {{"--spec-type", "ngram-simple"}, kUnbuilt},
         {{"--spec-anything", "1"}, kUnbuilt},
         // side models
         {{"--reranker-model", "x"}, kUnbuilt},
         {{"--embeddings"}, kUnbuilt},
         {{"--reranking"}, kUnbuilt},
         {{"--pooling", "mean"}, kUnbuilt},
         {{"--embd-normalize", "1"}, kUnbuilt},
         {{"--embedding-model", "x"}, kUnbuilt},
         {{"--embedding-batch-size", "8"}, kUnbuilt},
         {{"--rerank-batch-size", "8"}, kUnbuilt},
         // media
         {{"--media-path", "x"}, kUnbuilt},
         {{"--image-min-tokens", "1"}, kUnbuilt},
         {{"--image-max-tokens", "1"}, kUnbuilt},
         // router
         {{"--models-dir", "x"}, kUnbuilt},
         {{"--models-max", "2"}, kUnbuilt},
         {{"--models-autoload"}, kUnbuilt},
         {{"--models-preset", "x"}, kUnbuilt},
         {{"--tags", "x"}, kUnbuilt},
         // hub
         {{"--offline"}, kUnbuilt},
         {{"--hf-repo", "x"}, kUnbuilt},
         {{"--hf-token", "x"}, kUnbuilt},
         {{"--revision", "x"}, kUnbuilt},
         // refused for good
         {{"--hf-file", "x"}, kUnbuilt},
         {{"--model-url", "x"}, kUnbuilt},
         {{"--docker-repo", "x"}, kUnbuilt},
         {{"--mmproj", "x"}, kUnbuilt},
         {{"--control-vector", "x"}, kUnbuilt},
         {{"--webui-config", "x"}, kUnbuilt},
         {{"--tools", "all"}, kUnbuilt},
         {{"--agent"}, kUnbuilt},
         // distributed
         {{"--tp-size", "2"}, kUnbuilt},
         {{"--pp-size", "2"}, kUnbuilt},
         {{"--node-role", "x"}, kUnbuilt},
         {{"--serving-bind", "x"}, kUnbuilt},
         {{"--prefill-peers", "x"}, kUnbuilt},
         {{"--decode-peers", "x"}, kUnbuilt},
         {{"--pp-auto"}, kUnbuilt},
         {{"--cluster-name", "x"}, kUnbuilt}});
}

TEST_F(OptionsTable, OtherProgramsDeviceFlagsAtTheirNeutralValue) {
  check(
      {{{"--n-gpu-layers", "0"}},
       {{"--n-gpu-layers", "33"}, kUnbuilt},
       {{"--split-mode", "none"}},
       {{"--split-mode", "row"}, kUnbuilt},
       {{"--main-gpu", "0"}},
       {{"--flash-attn", "auto"}},
       {{"--flash-attn", "off"}, kUnbuilt},
       {{"--numa", "isolate"}, kUnbuilt},
       {{"--threads-batch", "-1"}},
       {{"--threads-batch", "3"}, kUnbuilt},
       {{"--cpu-mask", "ff"}, kUnbuilt},
       {{"--cpu-strict", "0"}},
       {{"--prio", "0"}},
       {{"--prio", "2"}, kUnbuilt},
       {{"--poll", "50"}},
       {{"--n-cpu-moe", "0"}},
       {{"--no-kv-offload"}, kUnbuilt},
       {{"--mlock"}},
       {{"--no-mmap"}},
       {{"--kv-bits", "0"}},
       {{"--cache-type-k", "q8_0"}, kUnbuilt}});
  ProgramResult result = start({"-ngl", "33"});
  EXPECT_THAT(result.err, ::testing::HasSubstr("--n-gpu-layers is not built"));
  result = start({"--alais", "x"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, ::testing::HasSubstr("did you mean --alias"));
}

// Words that begin with a dash, where one can begin.
std::set<std::string> options_in(std::string_view text) {
  std::set<std::string> out;
  auto part = [](char c) { return std::isalnum(uint8_t(c)) || c == '-'; };
  for (size_t i = 0; i < text.size();) {
    size_t end = i;
    while (end < text.size() && (part(text[end]) || text[end] == '_')) {
      ++end;
    }
    std::string_view word = text.substr(i, end - i);
    size_t letter = word.find_first_not_of('-');
    if (word.starts_with("-") && letter != word.npos &&
        std::isalpha(uint8_t(word[letter]))) {
      out.emplace(word);
    }
    i = end + 1;
  }
  return out;
}

TEST_F(OptionsTable, HelpAndDocumentationHaveTheSameNames) {
  ProgramResult result = testing::run_program({"serve", "--help"});
  ASSERT_EQ(result.exit_code, 0);
  std::set<std::string> helped;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("  -")) {
      // "  -n,--max-tokens INT ...", "  -np    --parallel"
      helped.merge(options_in(line.substr(2, line.find(' ', 2) - 2)));
    }
  }
  ASSERT_GT(helped.size(), 100u);
  std::ifstream file(
      std::filesystem::path(MLXCEL_TEST_FIXTURES) / "../../docs/cli.md");
  std::string text{std::istreambuf_iterator<char>(file), {}};
  size_t begin = text.find("\n## serve\n");
  size_t end = text.find("\n## ", begin + 1);
  ASSERT_LT(begin, end);
  std::set<std::string> documented = options_in(text);
  for (const std::string& name : helped) {
    EXPECT_TRUE(documented.contains(name)) << name << " is not documented";
  }
  for (const std::string& name :
       options_in(std::string_view(text).substr(begin, end - begin))) {
    EXPECT_TRUE(helped.contains(name)) << name << " is not in the help";
  }
  EXPECT_THAT(
      result.out,
      ::testing::Not(::testing::HasSubstr("LoRA adapters to fuse into")));
  EXPECT_THAT(result.out, ::testing::HasSubstr("--log-colors TEXT:{"));
  EXPECT_THAT(result.out, ::testing::HasSubstr("}=auto (Env:LLAMA_LOG_COLORS"));
}

}  // namespace
}  // namespace mlxcel
