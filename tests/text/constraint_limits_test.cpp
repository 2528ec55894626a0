// What grammars and schemas may cost, and what is refused because no answer
// could hold it.
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

TEST_F(ConstraintTest, HostileSourcesStayWithinTheLimits) {
  std::string nested_schema, all, rules = "start: r0\n";
  for (int i = 0; i < 5000; ++i) {
    nested_schema += "{\"items\":";
  }
  all = "{\"allOf\":[";
  for (int i = 0; i < 40; ++i) {
    all += (i > 0 ? "," : "") + std::string(R"({"anyOf":[{"properties":{"a)") +
           std::to_string(i) + R"(":{"type":"null"}}},{"required":["b)" +
           std::to_string(i) + R"("]}]})";
  }
  all += "]}";
  for (int i = 0; i < 9000; ++i) {
    rules += cat("r", i, ": r", i + 1, " \"a\"\n");
  }
  rules += "r9000: \"b\"\n";
  const GrammarSource sources[] = {
      {GrammarKind::json_schema, nested_schema},
      {GrammarKind::json_schema, all},
      {GrammarKind::json_schema, R"({"allOf":[{"$ref":"#"}]})"},
      {GrammarKind::json_schema, R"({"$ref":"#"})"},
      {GrammarKind::json_schema,
       R"({"type":"string","pattern":"^(((((a{1,200}){1,200}){1,200}){1,200}){1,200})$"})"},
      {GrammarKind::json_schema, R"({"type":"array","minItems":1000000000})"},
      {GrammarKind::json_schema, R"({"type":"string","minLength":100000000})"},
      {GrammarKind::lark, "start: " + std::string(100000, '(')},
      {GrammarKind::lark, rules},
      {GrammarKind::lark, "start: start start | \"a\" | start start start"},
      {GrammarKind::lark, "start: /(.*a){50}(.*b){50}/"},
      {GrammarKind::regex, std::string(100000, '(')},
      {GrammarKind::regex, "(a|aa|aaa){1000}{1000}"},
      {GrammarKind::gbnf, "root ::= " + std::string(100000, '(')},
      {GrammarKind::gbnf, "root ::= \"a\"" + std::string(50000, '*')},
      {GrammarKind::gbnf, "root ::= root root | \"a\" | "},
  };
  std::mt19937 random(1);
  for (const GrammarSource& source : sources) {
    // Each of them takes longer than the whole test may if a limit is missing.
    try {
      draw(*compiler.compile(source), random, 50);
    } catch (const TextError&) {
    }
  }
}

TEST_F(ConstraintTest, RandomSourcesNeverCrash) {
  std::mt19937 random(3);
  const std::string parts[] = {
      "start: ", "root ::= ", "a",          "\"",         "[", "]",  "(",   ")",
      "|",       "*",         "+",          "{2,3}",      "/", "\\", "\n",  " ",
      "<tool>",  "%json ",    "{\"type\":", "\"object\"", "}", ",",  "T: ", "&",
      "~",       "%ignore ",  "\xff",       "^",          "-"};
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    for (size_t n = random() % 24; n > 0; --n) {
      text += parts[random() % std::size(parts)];
    }
    auto kind = GrammarKind(random() % 4);
    try {
      auto grammar = compiler.compile({kind, text});
      draw(*grammar, random, 5);
    } catch (const TextError&) {
    }
  }
}

GrammarSource schema_of(const nlohmann::ordered_json& schema) {
  return {GrammarKind::json_schema, schema.dump()};
}

TEST_F(ConstraintTest, NoRepetitionsAreTheEmptyText) {
  for (const char* text :
       {R"(root ::= "a"{0} "b")",
        R"(root ::= "a"{0,0} "b")",
        R"(root ::= x{0} "b" x{0,0}
x ::= "c" x | "d")"}) {
    GrammarSource source{GrammarKind::gbnf, text};
    EXPECT_TRUE(takes(source, "b")) << text;
    EXPECT_FALSE(takes(source, "ab")) << text;
  }
}

// A grammar has to tell all remainders apart.
TEST_F(ConstraintTest, MultiplesHaveALimit) {
  using Json = nlohmann::ordered_json;
  auto integer = [](double by) {
    return Json({{"type", "integer"}, {"multipleOf", by}});
  };
  EXPECT_TRUE(takes(schema_of(integer(10000)), "30000"));
  EXPECT_FALSE(takes(schema_of(integer(10000)), "35000"));
  EXPECT_TRUE(
      takes(schema_of({{"type", "number"}, {"multipleOf", 0.25}}), "1.75"));
  for (double by : {9999991., 10001., 0.10001, 4294967296., 1e300, 1e-300}) {
    EXPECT_THAT(
        why(schema_of(integer(by))),
        ::testing::AllOf(
            ::testing::HasSubstr("at /multipleOf"),
            ::testing::HasSubstr("10000 at most")))
        << by;
  }
  EXPECT_THAT(
      why(schema_of(false)), ::testing::HasSubstr("which no value meets"));
  for (double by : {0., -1.}) {
    EXPECT_THAT(
        why(schema_of(integer(by))),
        ::testing::HasSubstr("a number above 0 is needed"));
  }
  // 12 is a multiple of 4 and 6; 9973 and 9967 are primes.
  Json both = {{"allOf", {integer(4), integer(6)}}};
  EXPECT_TRUE(takes(schema_of(both), "12"));
  EXPECT_FALSE(takes(schema_of(both), "8"));
  both = {{"allOf", {integer(9973), integer(9967)}}};
  EXPECT_THAT(
      why(schema_of(both)),
      ::testing::AllOf(
          ::testing::HasSubstr("at /allOf/1/multipleOf"),
          ::testing::HasSubstr("least common multiple")));
  // They meet at the member, too.
  auto member = [&](double by) {
    return Json({{"properties", {{"a", integer(by)}}}});
  };
  both = {{"allOf", {member(9973), member(9967)}}};
  EXPECT_THAT(
      why(schema_of(both)), ::testing::HasSubstr("least common multiple"));
  Json beside = {
      {"$ref", "#/$defs/a"},
      {"multipleOf", 9973},
      {"$defs", {{"a", integer(9967)}}}};
  EXPECT_THAT(
      why(schema_of(beside)), ::testing::HasSubstr("least common multiple"));
  // Apart from each other they do not meet, but count together.
  Json apart = {
      {"type", "array"}, {"prefixItems", {integer(9973), integer(9967)}}};
  EXPECT_TRUE(takes(schema_of(apart), "[9973, 9967]"));
  apart["prefixItems"] = Json::array();
  for (double by : {9973., 9967., 9949., 9941., 9931., 9929.}) {
    apart["prefixItems"].push_back(integer(by));
  }
  EXPECT_THAT(why(schema_of(apart)), ::testing::HasSubstr("50000 is the most"));
  // Schemas inside a grammar are no way around.
  EXPECT_THAT(
      why({GrammarKind::lark, "start: %json " + integer(9999991).dump()}),
      ::testing::HasSubstr("10000 at most"));
}

// {"a":1,"a":1} has one member, by most readers.
TEST_F(ConstraintTest, LeastMembersAreNotMetByRepeatedNames) {
  using Json = nlohmann::ordered_json;
  Json object = {
      {"type", "object"},
      {"additionalProperties", {{"type", "boolean"}}},
      {"minProperties", 2}};
  EXPECT_THAT(
      why(schema_of(object)), ::testing::HasSubstr("at /minProperties"));
  object.erase("additionalProperties");
  EXPECT_THAT(
      why(schema_of(object)), ::testing::HasSubstr("at /minProperties"));
  object["patternProperties"] = {{"^x", {{"type", "boolean"}}}};
  object["additionalProperties"] = false;
  EXPECT_THAT(
      why(schema_of(object)), ::testing::HasSubstr("at /minProperties"));
  // One free name is new in any case.
  object = {
      {"type", "object"},
      {"properties", {{"a", {{"type", "boolean"}}}}},
      {"required", {"a"}},
      {"additionalProperties", {{"type", "boolean"}}},
      {"minProperties", 2}};
  EXPECT_TRUE(takes(schema_of(object), R"({"a":true,"b":true})"));
  EXPECT_FALSE(takes(schema_of(object), R"({"a":true,"a":true})"));
  EXPECT_FALSE(takes(schema_of(object), R"({"a":true})"));
  object["minProperties"] = 3;
  EXPECT_THAT(why(schema_of(object)), ::testing::HasSubstr("2 here"));
  // Names that are all known.
  object = {
      {"type", "object"},
      {"properties",
       {{"a", {{"type", "boolean"}}}, {"b", {{"type", "boolean"}}}}},
      {"required", {"a", "b"}},
      {"additionalProperties", false},
      {"minProperties", 2}};
  EXPECT_TRUE(takes(schema_of(object), R"({"a":true,"b":false})"));
}

}  // namespace
}  // namespace mlxcel
