#include "cli/grammar_options.h"

#include "core/error.h"
#include "io/json.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

namespace mlxcel::cli {

void declare_grammar_options(CLI::App& app, GrammarOptions& options) {
  CLI::Option* given[] = {
      app.add_option(
             "--grammar",
             options.grammar,
             "A grammar that the answer keeps to, in GBNF or Lark")
          ->type_name("GRAMMAR"),
      app.add_option(
             "--grammar-file", options.grammar_file, "The same, from a file")
          ->type_name("FILE"),
      app.add_option(
             "-j,--json-schema",
             options.json_schema,
             "A JSON schema that the answer keeps to; {} for any object")
          ->type_name("JSON"),
      app.add_option(
             "--json-schema-file",
             options.json_schema_file,
             "The same, from a file")
          ->type_name("FILE")};
  for (CLI::Option* option : given) {
    option->group("Grammar");
    for (CLI::Option* other : given) {
      if (option != other) {
        option->excludes(other);
      }
    }
  }
}

std::optional<GrammarSource> grammar_source(const GrammarOptions& options) {
  if (!options.json_schema_file.empty()) {
    return json_schema_grammar(read_text_file(options.json_schema_file));
  }
  if (!options.json_schema.empty()) {
    if (!nlohmann::json::accept(options.json_schema)) {
      throw UsageError(
          cat("wrong --json-schema '", options.json_schema, "'"),
          "it is not valid JSON",
          "give a schema such as '{\"type\": \"object\"}', or "
          "--json-schema-file FILE");
    }
    return json_schema_grammar(options.json_schema);
  }
  if (!options.grammar_file.empty()) {
    return text_grammar(read_text_file(options.grammar_file));
  }
  if (!options.grammar.empty()) {
    return text_grammar(options.grammar);
  }
  return std::nullopt;
}

std::shared_ptr<const Grammar> compile_option(
    GrammarCompiler& compiler,
    const GrammarOptions& options,
    const GrammarSource& source) {
  try {
    return compiler.compile(source);
  } catch (const TextError& error) {
    if (options.json_schema.empty() && options.grammar.empty()) {
      throw;
    }
    throw UsageError(error.summary(), error.why(), error.fix());
  }
}

}  // namespace mlxcel::cli
