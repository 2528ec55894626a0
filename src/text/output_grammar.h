// The grammar of a whole answer: thoughts, then calls of the tools that may or
// must be called, in the model's own notation, or text that fits a schema.
#pragma once

#include "text/chat_output.h"
#include "text/constraint.h"

#include <nlohmann/json.hpp>
#include <optional>

namespace mlxcel {

struct OutputRules {
  const ToolFormat* format = nullptr;
  nlohmann::ordered_json tools;   // those that may be called; null: none
  bool calls_required = false;    // else calls are an alternative to the schema
  bool parallel = true;           // several calls in one answer
  nlohmann::ordered_json schema;  // of an answer without calls; null: none
  Marks marks = {"<think>", "</think>"};
  PromptEnd prompt = PromptEnd::answer;
  bool may_think = false;  // the answer may begin with thoughts
};

// Nothing when the rules leave the answer free. Throws TextError for a schema
// that cannot be used, with the tool or the place.
std::optional<GrammarSource> output_grammar(
    const OutputRules& rules, const Tokenizer& tokenizer);

// `answer` for a prompt that ends inside a thought: it begins behind the mark
// that closes the thought. Throws TextError for a schema or grammar that cannot
// be read.
GrammarSource grammar_behind_thought(
    const GrammarSource& answer,
    const Marks& reasoning,
    const Tokenizer& tokenizer);

}  // namespace mlxcel
