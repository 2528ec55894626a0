// The options that hold an answer to a grammar, under llama-server's names.
#pragma once

#include "text/constraint.h"

#include <memory>
#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace mlxcel::cli {

struct GrammarOptions {
  std::string grammar, grammar_file;  // GBNF or Lark
  std::string json_schema, json_schema_file;
};

void declare_grammar_options(CLI::App& app, GrammarOptions& options);

// What was asked for, files read; nothing when there is no such option.
std::optional<GrammarSource> grammar_source(const GrammarOptions& options);

// Compiles it; a fault in what stands on the command line is a UsageError.
std::shared_ptr<const Grammar> compile_option(
    GrammarCompiler& compiler,
    const GrammarOptions& options,
    const GrammarSource& source);

}  // namespace mlxcel::cli
