// Constrained decoding: random walks under a grammar, checked by readers that
// know nothing of it.
#include "text/constraint.h"

#include "core/error.h"
#include "text/byte_tokenizer.h"
#include "text/constraint_support.h"
#include "text/gbnf.h"
#include "text/output_grammar.h"
#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <algorithm>

#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

namespace mlxcel {
namespace {

using testing::ConstraintTest;
using testing::kEnd;
using testing::kTool;

// JSON, where numbers may exceed a double.
bool well_formed(const std::string& text) {
  try {
    return !nlohmann::json::parse(text).is_discarded();
  } catch (const nlohmann::json::out_of_range&) {
    return true;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

TEST_F(ConstraintTest, TakesWhatASchemaAllowsAndNothingElse) {
  GrammarSource schema{GrammarKind::json_schema, R"({
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 3, "maximum": 12},
                   "s": {"enum": ["a", "b"]}},
    "required": ["n"], "additionalProperties": false})"};
  EXPECT_TRUE(takes(schema, R"({"n": 3})"));
  EXPECT_TRUE(takes(schema, R"({"n":12,"s":"b"})"));
  EXPECT_FALSE(takes(schema, R"({"n":13})"));
  EXPECT_FALSE(takes(schema, R"({"n":2})"));
  EXPECT_FALSE(takes(schema, R"({"s":"a"})"));
  EXPECT_FALSE(takes(schema, R"({"n":5,"x":1})"));
  EXPECT_FALSE(takes(schema, R"({"n":5,"s":"c"})"));
  EXPECT_FALSE(takes(schema, R"({"n":5)"));
  EXPECT_FALSE(takes(schema, R"({"n":5}})"));
}

TEST_F(ConstraintTest, MasksWholeTokensBySpelling) {
  auto constraint =
      compiler.compile({GrammarKind::regex, R"(true|t1|12)"})->start();
  // t, tr, true, 1 and 12.
  EXPECT_THAT(
      allowed(*constraint), ::testing::ElementsAre('1', 't', 258, 259, 260));
  constraint->accept(258);
  EXPECT_THAT(allowed(*constraint), ::testing::ElementsAre('u'));
  EXPECT_THROW(constraint->accept('x'), TextError);
}

TEST_F(ConstraintTest, EndsOnlyWhereTheTextMayEnd) {
  auto constraint = compiler.compile({GrammarKind::regex, "a|ab"})->start();
  EXPECT_FALSE(constraint->accepting());
  constraint->accept('a');
  EXPECT_TRUE(constraint->accepting());
  EXPECT_FALSE(constraint->finished());
  EXPECT_THAT(allowed(*constraint), ::testing::ElementsAre('b', kEnd));
  constraint->accept('b');
  EXPECT_TRUE(constraint->finished());
  EXPECT_THAT(allowed(*constraint), ::testing::ElementsAre(kEnd));
}

// A vocabulary may end texts with a token that is a text besides.
TEST_F(ConstraintTest, AnEndTokenWithASpellingEndsNothingEarly) {
  GrammarCompiler plain(*tokenizer, {'.'});
  auto walk = [&](const GrammarSource& source, std::string_view text) {
    auto constraint = plain.compile(source)->start();
    for (char c : text) {
      EXPECT_FALSE(allows(constraint->mask(), '.')) << text << " at " << c;
      EXPECT_TRUE(allows(constraint->mask(), uint8_t(c))) << text << " " << c;
      constraint->accept(uint8_t(c));
    }
    EXPECT_TRUE(allows(constraint->mask(), '.')) << text;
  };
  walk({GrammarKind::json_schema, R"({"type":"string"})"}, "\"ab\"");
  walk(
      grammar_behind_thought(
          json_schema_grammar(R"({"enum":["ab"]})"),
          {"<think>", "</think>"},
          *tokenizer),
      "so </think>\"ab\"");
  // Nothing else could follow: no text fits.
  try {
    plain.compile({GrammarKind::lark, "start: \".\" \"a\""});
    ADD_FAILURE();
  } catch (const TextError& error) {
    EXPECT_EQ(error.why(), "only tokens that end the text could continue it");
  }
}

TEST_F(ConstraintTest, GrammarsOfEveryKindFollowAThought) {
  const Marks marks = {"<think>", "</think>"};
  const GrammarSource sources[] = {
      {GrammarKind::json_schema, R"({"const":"a{b"})"},
      {GrammarKind::regex, R"("a[{]b")"},
      {GrammarKind::gbnf, R"(root ::= q "a{b" q
q ::= "\"")"},
      {GrammarKind::lark, R"(start: Q "a{b" Q
Q: "\"")"},
      {GrammarKind::lark, R"(%llguidance {}
start: %json {"const": "a{b"})"},
  };
  for (const GrammarSource& source : sources) {
    GrammarSource whole = grammar_behind_thought(source, marks, *tokenizer);
    EXPECT_TRUE(takes(whole, "\"a\" < </think>\"a{b\"")) << source.text;
    EXPECT_TRUE(takes(whole, "</think>\n\n\"a{b\"")) << source.text;
    EXPECT_FALSE(takes(whole, "\"a{b\"")) << source.text;
    EXPECT_FALSE(takes(whole, "x</think>\"a{c\"")) << source.text;
    EXPECT_FALSE(takes(whole, "x</think>")) << source.text;
  }
}

TEST_F(ConstraintTest, NamesSpecialTokensInLarkOnly) {
  auto constraint =
      compiler.compile({GrammarKind::lark, "start: <tool> \"x\""})->start();
  EXPECT_THAT(allowed(*constraint), ::testing::ElementsAre(kTool));
  auto text =
      compiler.compile({GrammarKind::lark, "start: \"<tool>\""})->start();
  EXPECT_THAT(allowed(*text), ::testing::ElementsAre('<'));
}

TEST_F(ConstraintTest, WorksWithoutEndTokens) {
  GrammarCompiler endless(*tokenizer, {});
  auto constraint = endless.compile({GrammarKind::regex, "ab?"})->start();
  constraint->accept('a');
  EXPECT_TRUE(constraint->accepting());
  EXPECT_THAT(allowed(*constraint), ::testing::ElementsAre('b'));
  constraint->accept('b');
  EXPECT_TRUE(constraint->finished());
  EXPECT_THAT(allowed(*constraint), ::testing::IsEmpty());
}

TEST_F(ConstraintTest, SharesOneGrammarAmongSequences) {
  GrammarSource source{GrammarKind::regex, "[ab]{3}"};
  auto grammar = compiler.compile(source);
  EXPECT_EQ(grammar, compiler.compile(source));
  auto one = grammar->start(), other = grammar->start();
  one->accept('a');
  one->accept('b');
  one->accept('b');
  EXPECT_TRUE(one->finished());
  EXPECT_THAT(allowed(*other), ::testing::ElementsAre('a', 'b', 261));
}

TEST_F(ConstraintTest, WhitespaceInJsonIsBounded) {
  GrammarSource object = json_object_grammar();
  EXPECT_TRUE(takes(object, "{\n  \"a\": 1\n}"));
  EXPECT_FALSE(takes(object, "{\"a\":" + std::string(40, ' ') + "1}"));
  EXPECT_FALSE(takes(object, "[1]"));
}

TEST_F(ConstraintTest, DrawsFinishAndAreJson) {
  std::mt19937 random(7);
  auto grammar = compiler.compile({GrammarKind::json_schema, R"({
    "type": "object",
    "properties": {
      "name": {"type": "string", "maxLength": 6},
      "size": {"type": "number", "minimum": -2.5, "exclusiveMaximum": 7},
      "tags": {"type": "array", "items": {"enum": ["x", 1, null, true]},
               "minItems": 1, "maxItems": 3},
      "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/leaf"}]}},
    "required": ["name", "size", "tags", "next"],
    "additionalProperties": false,
    "$defs": {"leaf": {"type": "object",
      "properties": {"id": {"type": "string", "pattern": "^[a-c]{2}-\\d$"}},
      "required": ["id"], "additionalProperties": false}}})"});
  int finished = 0;
  for (int i = 0; i < 60; ++i) {
    std::string text = draw(*grammar, random, 600);
    if (text.empty()) {
      continue;
    }
    ++finished;
    auto value = nlohmann::json::parse(text, nullptr, false);
    ASSERT_TRUE(value.is_object()) << text;
    ASSERT_EQ(value.size(), 4u) << text;
    double size = value["size"].get<double>();
    EXPECT_TRUE(size >= -2.5 && size < 7) << text;
    EXPECT_TRUE(value["tags"].size() >= 1 && value["tags"].size() <= 3);
    for (const auto& tag : value["tags"]) {
      EXPECT_TRUE(tag == "x" || tag == 1 || tag == nullptr || tag == true);
    }
    const auto& next = value["next"];
    if (!next.is_null()) {
      std::string id = next.at("id").get<std::string>();
      EXPECT_TRUE(
          id.size() == 4 && id[0] >= 'a' && id[0] <= 'c' && id[2] == '-' &&
          id[3] >= '0' && id[3] <= '9')
          << text;
    }
  }
  EXPECT_GT(finished, 30);
}

TEST_F(ConstraintTest, NamesThePlaceOfAFault) {
  auto schema = [&](const char* text) {
    return why({GrammarKind::json_schema, text});
  };
  EXPECT_EQ(schema("{\"type\":"), "it is no JSON: byte 9 is unexpected");
  EXPECT_EQ(
      schema(R"({"properties":{"a/b":{"type":"strin"}}})"),
      "at /properties/a~1b/type: there is no type \"strin\"; types are null, "
      "boolean, object, array, number, integer, string");
  EXPECT_EQ(
      schema(R"({"items":{"not":{"type":"null"}}})"),
      "at /items/not: no grammar can hold a text to this keyword");
  EXPECT_EQ(
      schema(R"({"$ref":"#/$defs/x"})"),
      "at /$ref: the schema has nothing at #/$defs/x");
  EXPECT_EQ(
      schema(R"({"$ref":"http://example.com/s"})"),
      "at /$ref: only references within the schema are followed (#/...), not "
      "\"http://example.com/s\"");
  EXPECT_EQ(
      schema(R"({"required":"a"})"),
      "at /required: a list of strings is needed, not \"a\"");
  EXPECT_EQ(
      schema("3"), "at its root: a schema is an object or a boolean, not 3");
}

// As generators of schemas write the types of other languages.
TEST_F(ConstraintTest, BoundsOfWideTypesChangeNothing) {
  const char* const schemas[] = {
      R"({"type":"integer","minimum":-9223372036854775808,
          "maximum":9223372036854775807})",
      R"({"type":"integer","minimum":-1000,"maximum":18446744073709551615})",
      R"({"type":"integer","minimum":-9223372036854775808,
          "exclusiveMaximum":9223372036854775808})",
      R"({"type":"number","minimum":-3.402823669209385e+38,
          "maximum":3.402823669209385e+38})",
      R"({"type":"number","minimum":-1.7976931348623157e+308,
          "exclusiveMinimum":true,"maximum":1.7976931348623157e+308})",
  };
  for (const char* schema : schemas) {
    GrammarSource source{GrammarKind::json_schema, schema};
    for (const char* text : {"0", "-1", "-1000", "9223372036854775807"}) {
      EXPECT_TRUE(takes(source, text)) << schema << " " << text;
    }
    EXPECT_FALSE(takes(source, "true")) << schema;
  }
  EXPECT_FALSE(takes(
      {GrammarKind::json_schema,
       R"({"type":"integer","minimum":0,"maximum":18446744073709551615})"},
      "-1"));
}

TEST_F(ConstraintTest, FaultsOfSchemasAreToldInPlainWords) {
  auto why = [&](const char* schema) {
    try {
      compiler.compile({GrammarKind::json_schema, schema});
    } catch (const TextError& error) {
      return error.why();
    }
    return std::string("none");
  };
  EXPECT_THAT(
      why(R"({"oneOf":[{"type":"integer"},{"type":"number"}]})"),
      ::testing::StartsWith("the branches of a oneOf may fit the same value"));
  EXPECT_THAT(
      why(R"({"type":"integer","minimum":1000000000000000000})"),
      ::testing::StartsWith("the bounds of a number are too far apart"));
}

TEST_F(ConstraintTest, RefusesGrammarsWithoutText) {
  EXPECT_EQ(
      why({GrammarKind::json_schema, R"({"$ref":"#"})"}),
      "it allows no text at all");
}

TEST_F(ConstraintTest, ReferencesMayHoldAnyName) {
  GrammarSource schema{GrammarKind::json_schema, R"({
    "$ref": "#/definitions/a~1b%20c",
    "definitions": {"a/b c": {"type": "array", "items": {"$ref": "#"},
                              "maxItems": 2}}})"};
  EXPECT_TRUE(takes(schema, "[[],[[]]]"));
  EXPECT_FALSE(takes(schema, "[1]"));
}

// Reference: does the grammar derive text[begin, end)? Plain recursion over the
// parse tree, with every split tried.
class GbnfOracle {
 public:
  explicit GbnfOracle(std::string_view source) : grammar_(parse_gbnf(source)) {}
  // ASCII only. The ends at which a match from `begin` may stop.
  bool takes(std::string_view text) {
    text_ = text;
    memo_.clear();
    return ends(grammar_.rules[size_t(grammar_.root)].body, 0)
        .contains(text.size());
  }

 private:
  using Ends = std::set<size_t>;
  Ends ends(int index, size_t begin) {
    auto [found, fresh] = memo_.try_emplace({index, begin});
    if (!fresh) {
      return found->second;  // grammars here have no left recursion
    }
    const GbnfNode& n = grammar_.nodes[size_t(index)];
    Ends out;
    if (n.kind == GbnfNode::Kind::chars) {
      if (begin < text_.size()) {
        uint32_t c = uint8_t(text_[begin]);
        if (intersects(n.set, {{c, c}})) {
          out.insert(begin + 1);
        }
      }
    } else if (n.kind == GbnfNode::Kind::rule) {
      out = ends(grammar_.rules[size_t(n.rule)].body, begin);
    } else if (n.kind == GbnfNode::Kind::choice) {
      for (int child : n.children) {
        out.merge(ends(child, begin));
      }
    } else if (n.kind == GbnfNode::Kind::sequence) {
      out = {begin};
      for (int child : n.children) {
        out = behind(child, out);
      }
    } else {
      Ends at = {begin};
      for (int i = 0; n.max < 0 || i <= n.max; ++i) {
        if (i >= n.min) {
          size_t before = out.size();
          out.insert(at.begin(), at.end());
          if (out.size() == before) {
            break;
          }
        }
        at = behind(n.children[0], at);
      }
    }
    return memo_[{index, begin}] = out;
  }
  Ends behind(int child, const Ends& from) {
    Ends out;
    for (size_t at : from) {
      out.merge(ends(child, at));
    }
    return out;
  }

  GbnfGrammar grammar_;
  std::string_view text_;
  std::map<std::pair<int, size_t>, Ends> memo_;
};

TEST_F(ConstraintTest, GbnfTakesExactlyItsLanguage) {
  const char* grammars[] = {
      "root ::= w \"a\" | \"(\" root \")\"\nw ::= [a-b]*",
      "root ::= \"a\" x | \"ab\" y\nx ::= \"b\" root | \"bb\"\ny ::= \"(\" y "
      "\")\" | \"a\"",
      "root ::= (e \"=\" t \"b\")+\ne ::= t ([-+] t)*\n"
      "t ::= [a-b] [ab-]* w | \"(\" w e \")\" w\nw ::= [ b]*",
      "root ::= l\nl ::= \"(\" (l (\",\" l)*)? \")\" | n\nn ::= \"-\"? "
      "[ab]{1,3} (\"=\" [ab]+)?",
      "root ::= s | \"(\" root root? \")\"\ns ::= \"a\" (\"b\" | )* \"=\"{0,2} "
      "| \"\"",
      "root ::= (\"ab\" | \"a\" | \"b\" r)*\nr ::= \"(\" r \")\" | \"b\"",
  };
  const std::string alphabet = "ab()=,-+ ";
  std::mt19937 random(11);
  for (const char* source : grammars) {
    GbnfOracle oracle(source);
    GrammarSource grammar{GrammarKind::gbnf, source};
    // What is drawn belongs to it...
    auto compiled = compiler.compile(grammar);
    int good = 0;
    std::vector<std::string> drawn;
    for (int i = 0; i < 150; ++i) {
      std::string text = draw(*compiled, random, 24);
      if (!text.empty()) {
        ++good;
        EXPECT_TRUE(oracle.takes(text)) << source << "\n" << text;
        drawn.push_back(text);
      }
    }
    EXPECT_GT(good, 10) << source;
    // ... and texts near it are judged alike.
    for (int i = 0; i < 400 && !drawn.empty(); ++i) {
      std::string text = drawn[random() % drawn.size()];
      for (size_t edits = random() % 3; edits > 0 && !text.empty(); --edits) {
        size_t at = random() % text.size();
        char c = alphabet[random() % alphabet.size()];
        switch (random() % 3) {
          case 0:
            text[at] = c;
            break;
          case 1:
            text.insert(at, 1, c);
            break;
          default:
            text.erase(at, 1);
        }
      }
      EXPECT_EQ(takes(grammar, text), oracle.takes(text))
          << source << "\n[" << text << "]\n"
          << gbnf_to_lark(source);
    }
  }
}

// llama.cpp's own example of JSON.
TEST_F(ConstraintTest, GbnfOfJson) {
  const char* json = R"gbnf(root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
)gbnf";
  GrammarSource grammar{GrammarKind::gbnf, json};
  EXPECT_TRUE(
      takes(grammar, R"({"a": [1, -2.5e+3, "x\u00e9"], "b":{"c":null}} )"));
  EXPECT_FALSE(takes(grammar, R"({"a": 01})"));
  EXPECT_FALSE(takes(grammar, R"({"a" :  1})"));
  EXPECT_FALSE(takes(grammar, R"([1])"));
  std::mt19937 random(5);
  auto compiled = compiler.compile(grammar);
  int good = 0;
  for (int i = 0; i < 200; ++i) {
    std::string text = draw(*compiled, random, 80);
    if (!text.empty()) {
      ++good;
      EXPECT_TRUE(well_formed(text)) << text;
    }
  }
  EXPECT_GT(good, 20);
}

}  // namespace
}  // namespace mlxcel
