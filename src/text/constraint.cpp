#include "text/constraint.h"

#include "core/error.h"
#include "text/gbnf.h"
#include "text/json_schema.h"
#include "text/textkit_call.h"
#include "text/tokenizer.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>
#include <list>
#include <mutex>

namespace mlxcel {

namespace {

constexpr size_t kMaxGrammarBytes = size_t(256) << 10;
constexpr int kMaxNesting = 200;  // of brackets in a grammar
constexpr size_t kMaxRemembered = 64;

// About 20 ms to compile a lexer, 15 ms for the worst mask, 100 MB of lexer
// states: rates in textkit.h.
constexpr tk_limits kLimits = {
    .compile_steps = 1'000'000,
    .mask_steps = 200'000,
    .mask_items = 100'000,
    .row_items = 2'000,
    .lexer_states = 50'000,
    .grammar_size = 100'000,
};

struct MatcherDeleter {
  void operator()(tk_matcher* handle) const {
    tk_matcher_free(handle);
  }
};
struct VocabularyDeleter {
  void operator()(tk_vocabulary* handle) const {
    tk_vocabulary_free(handle);
  }
};
using MatcherHandle = std::unique_ptr<tk_matcher, MatcherDeleter>;
using VocabularyHandle = std::unique_ptr<tk_vocabulary, VocabularyDeleter>;

const char* kind_name(GrammarKind kind) {
  switch (kind) {
    case GrammarKind::json_schema:
      return "the JSON schema";
    case GrammarKind::regex:
      return "the regular expression";
    default:
      return "the grammar";
  }
}

// Readers descend with brackets; anything that may be one counts, also inside
// strings, where no real grammar has this many.
void check_nesting(const GrammarSource& source) {
  if (source.text.size() > kMaxGrammarBytes) {
    throw TextError(
        cat(kind_name(source.kind), " is too large"),
        cat("it has ",
            source.text.size(),
            " bytes, at most ",
            kMaxGrammarBytes),
        "give a smaller one");
  }
  int depth = 0;
  for (size_t i = 0; i < source.text.size(); ++i) {
    char c = source.text[i];
    depth += c == '(' || c == '[' || c == '{';
    depth -= c == ')' || c == ']' || c == '}';
    depth = std::max(depth, 0);
    if (depth > kMaxNesting) {
      throw TextError(
          cat(kind_name(source.kind), " is nested too deeply"),
          cat("at byte ", i, " more than ", kMaxNesting, " brackets are open"),
          "give a simpler one");
    }
  }
}

// What the library says of a schema in terms of its own options and parts.
[[noreturn]] void rethrow_in_plain_words(const TextError& error) {
  struct Row {
    const char* has;
    const char* why;
  };
  constexpr Row kRows[] = {
      {"coerce_one_of",
       "the branches of a oneOf may fit the same value, which no grammar can "
       "rule out; use anyOf, or branches that differ in a const or a type"},
      {"Failed to generate regex",
       "the bounds of a number are too far apart or have too many digits for a "
       "grammar; use bounds below 10^18, or leave them out"},
  };
  for (const Row& row : kRows) {
    if (error.why().find(row.has) != std::string::npos) {
      throw TextError(error.summary(), row.why, error.fix());
    }
  }
  throw;
}

}  // namespace

GrammarSource json_object_grammar() {
  return {GrammarKind::json_schema, R"({"type":"object"})"};
}

GrammarSource json_schema_grammar(std::string schema) {
  bool empty = nlohmann::ordered_json::parse(schema, nullptr, false) ==
               nlohmann::ordered_json::object();
  return empty ? json_object_grammar()
               : GrammarSource{GrammarKind::json_schema, std::move(schema)};
}

GrammarSource text_grammar(std::string text) {
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      quoted = !quoted;
    } else if (text[i] == '\n') {
      quoted = false;  // strings end with their line
    } else if (!quoted && text.compare(i, 3, "::=") == 0) {
      return {GrammarKind::gbnf, std::move(text)};
    }
  }
  return {GrammarKind::lark, std::move(text)};
}

using Tokens = std::vector<int32_t>;

struct Constraint::State {
  MatcherHandle handle;
  std::shared_ptr<const Tokens> spelled_ends;
  int flags = 0;  // TK_MATCH_*
  bool fresh = false;
  std::vector<uint32_t> mask;

  void accept(int32_t token) {
    textkit_call(
        "the grammar cannot go on",
        "simplify the grammar, or give it shorter repetitions",
        [&](tk_sink sink, void* user) {
          return tk_matcher_accept(handle.get(), token, &flags, sink, user);
        });
    fresh = false;
  }

  // An end token that also spells a text ends the answer wherever it is drawn,
  // even where the grammar takes it for that text.
  void drop_spelled_ends() {
    uint32_t dropped = 0;
    for (int32_t token : *spelled_ends) {
      if (size_t(token) / 32 < mask.size()) {
        uint32_t bit = uint32_t(1) << token % 32;
        dropped |= mask[size_t(token) / 32] & bit;
        mask[size_t(token) / 32] &= ~bit;
      }
    }
    if (dropped != 0 &&
        std::all_of(mask.begin(), mask.end(), std::logical_not())) {
      throw TextError(
          "the grammar cannot go on",
          "only tokens that end the text could continue it",
          "change the grammar so that other tokens can");
    }
  }
};

Constraint::Constraint(std::unique_ptr<State> state)
    : state_(std::move(state)) {}
Constraint::~Constraint() = default;

std::span<const uint32_t> Constraint::mask() {
  if (!state_->fresh) {
    std::string bytes = textkit_call(
        "the grammar cannot go on",
        "simplify the grammar, or give it shorter repetitions",
        [&](tk_sink sink, void* user) {
          return tk_matcher_mask(state_->handle.get(), sink, user);
        });
    state_->mask.resize(bytes.size() / sizeof(uint32_t));
    if (!bytes.empty()) {
      std::memcpy(state_->mask.data(), bytes.data(), bytes.size());
    }
    if (!accepting()) {
      state_->drop_spelled_ends();
    }
    state_->fresh = true;
  }
  return state_->mask;
}

void Constraint::accept(int32_t token) {
  state_->accept(token);
}

bool Constraint::finished() const {
  return (state_->flags & TK_MATCH_ENDED) != 0;
}

bool Constraint::accepting() const {
  return (state_->flags & TK_MATCH_ACCEPTS) != 0;
}

struct Grammar::State {
  MatcherHandle handle;  // at the beginning, for ever
  std::shared_ptr<const Tokens> spelled_ends;
};

Grammar::Grammar(std::unique_ptr<State> state) : state_(std::move(state)) {}
Grammar::~Grammar() = default;

std::unique_ptr<Constraint> Grammar::start() const {
  auto state = std::make_unique<Constraint::State>();
  tk_matcher* handle = nullptr;
  textkit_call(
      "the grammar cannot be started", "", [&](tk_sink sink, void* user) {
        return tk_matcher_clone(state_->handle.get(), &handle, sink, user);
      });
  state->handle.reset(handle);
  state->spelled_ends = state_->spelled_ends;
  state->accept(-1);
  return std::unique_ptr<Constraint>(new Constraint(std::move(state)));
}

namespace {

// A grammar without any text, as of a schema that refers to itself alone.
void check_not_empty(const Grammar& grammar, GrammarKind kind) {
  std::string why = "it allows no text at all";
  try {
    auto begin = grammar.start();
    std::span<const uint32_t> mask = begin->mask();
    if (begin->accepting() ||
        std::any_of(mask.begin(), mask.end(), [](uint32_t w) { return w; })) {
      return;
    }
  } catch (const TextError& error) {
    if (error.why() != "NoExtensionBias") {
      why = error.why();
    }
  }
  throw TextError(
      cat(kind_name(kind), " cannot be used"), why, "correct or simplify it");
}

}  // namespace

struct GrammarCompiler::State {
  const Tokenizer* tokenizer;
  Tokens eos;
  std::shared_ptr<const Tokens> spelled_ends;  // those that are not special
  std::once_flag once;
  VocabularyHandle vocabulary;

  std::mutex mutex;
  struct Entry {
    GrammarSource source;
    std::shared_ptr<const Grammar> grammar;
  };
  std::list<Entry> entries;  // latest used first
};

GrammarCompiler::GrammarCompiler(
    const Tokenizer& tokenizer, std::vector<int32_t> eos)
    : state_(std::make_unique<State>()) {
  Tokens spelled;
  std::copy_if(
      eos.begin(), eos.end(), std::back_inserter(spelled), [&](int32_t token) {
        return token >= 0 && !tokenizer.is_special(token);
      });
  state_->tokenizer = &tokenizer;
  state_->eos = std::move(eos);
  state_->spelled_ends = std::make_shared<const Tokens>(std::move(spelled));
}

GrammarCompiler::~GrammarCompiler() = default;

std::shared_ptr<const Grammar> GrammarCompiler::compile(
    const GrammarSource& source) {
  {
    std::lock_guard lock(state_->mutex);
    auto& entries = state_->entries;
    for (auto it = entries.begin(); it != entries.end(); ++it) {
      if (it->source.kind == source.kind && it->source.text == source.text) {
        entries.splice(entries.begin(), entries, it);
        return it->grammar;
      }
    }
  }
  check_nesting(source);
  std::call_once(state_->once, [&] {
    tk_vocabulary* handle = nullptr;
    textkit_call(
        "this tokenizer cannot be held to a grammar",
        "leave out the grammar",
        [&](tk_sink sink, void* user) {
          return tk_vocabulary_new(
              state_->tokenizer->handle(),
              state_->eos.data(),
              state_->eos.size(),
              &handle,
              sink,
              user);
        });
    state_->vocabulary.reset(handle);
  });

  std::string text = source.text;
  const char* kind = "lark";
  if (source.kind == GrammarKind::json_schema) {
    kind = "json_schema";
    text = parse_json_schema(source.text)
               .dump(
                   -1,
                   ' ',
                   false,
                   nlohmann::ordered_json::error_handler_t::replace);
  } else if (source.kind == GrammarKind::gbnf) {
    text = gbnf_to_lark(source.text);
  } else if (source.kind == GrammarKind::regex) {
    kind = "regex";
  } else {
    check_embedded_schemas(text);
  }
  tk_matcher* handle = nullptr;
  try {
    textkit_call(
        cat(kind_name(source.kind), " cannot be used"),
        "correct or simplify it",
        [&](tk_sink sink, void* user) {
          return tk_matcher_new(
              state_->vocabulary.get(),
              kind,
              text.data(),
              text.size(),
              &kLimits,
              &handle,
              sink,
              user);
        });
  } catch (const TextError& error) {
    rethrow_in_plain_words(error);
  }
  auto compiled = std::make_unique<Grammar::State>();
  compiled->handle.reset(handle);
  compiled->spelled_ends = state_->spelled_ends;
  std::shared_ptr<const Grammar> grammar(new Grammar(std::move(compiled)));
  check_not_empty(*grammar, source.kind);

  std::lock_guard lock(state_->mutex);
  state_->entries.push_front({source, grammar});
  if (state_->entries.size() > kMaxRemembered) {
    state_->entries.pop_back();
  }
  return grammar;
}

}  // namespace mlxcel
