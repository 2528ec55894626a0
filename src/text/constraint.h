// Grammars for structured output: a JSON schema, a regular expression, or a
// grammar in Lark or GBNF, compiled against a tokenizer's vocabulary.
#pragma once

#include "text/token_constraint.h"

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace mlxcel {

class Tokenizer;

enum class GrammarKind : uint8_t {
  json_schema,
  lark,  // llguidance's dialect: rules, terminals, %json, <special_token>
  gbnf,  // llama.cpp's
  regex,
};

struct GrammarSource {
  GrammarKind kind = GrammarKind::json_schema;
  std::string text;
};

// Any JSON object, what `json_object` asks for.
GrammarSource json_object_grammar();
// {} means any object, as llama-server takes it.
GrammarSource json_schema_grammar(std::string schema);
// A grammar given as text: GBNF when it has "::=" outside of strings, else
// Lark.
GrammarSource text_grammar(std::string text);

// The state of one text under a grammar.
class Constraint : public TokenConstraint {
 public:
  ~Constraint() override;
  Constraint(const Constraint&) = delete;
  Constraint& operator=(const Constraint&) = delete;

  std::span<const uint32_t> mask() override;
  // Throws TextError for a token outside the mask; the state is lost then.
  void accept(int32_t token) override;
  bool finished() const override;
  bool accepting() const;  // the text so far is complete

 private:
  friend class Grammar;
  struct State;
  explicit Constraint(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Compiled once, shared by the sequences that use it.
class Grammar {
 public:
  ~Grammar();
  Grammar(const Grammar&) = delete;
  Grammar& operator=(const Grammar&) = delete;
  std::unique_ptr<Constraint> start() const;

 private:
  friend class GrammarCompiler;
  struct State;
  explicit Grammar(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Compiles and remembers grammars for one tokenizer. May be used by several
// threads; the tokenizer must outlive it.
class GrammarCompiler {
 public:
  // `eos`: the tokens that end a text.
  GrammarCompiler(const Tokenizer& tokenizer, std::vector<int32_t> eos);
  ~GrammarCompiler();

  // Throws TextError that says what is wrong with the source and where, or
  // which limit on size, depth or work it exceeds.
  std::shared_ptr<const Grammar> compile(const GrammarSource& source);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mlxcel
