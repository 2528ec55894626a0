// GBNF: reading, faults with their place, and the language that the Lark form
// describes, against a matcher that works on the characters of the grammar.
#include "text/gbnf.h"

#include "core/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mlxcel {
namespace {

std::string fault(std::string_view text) {
  try {
    parse_gbnf(text);
  } catch (const TextError& error) {
    return error.why();
  }
  return "no error";
}

TEST(GbnfTest, NamesLineAndColumn) {
  EXPECT_EQ(fault("root ::= \"a"), "line 1, column 12: the string has no end");
  EXPECT_EQ(fault("root ::= a\n"), "line 1, column 11: there is no rule a");
  EXPECT_EQ(
      fault("root ::= \"a\"\nroot ::= \"b\""),
      "line 2, column 1: the rule root is defined twice");
  EXPECT_EQ(fault("x ::= \"a\""), "it has no rule named root");
  EXPECT_EQ(fault("root = \"a\""), "line 1, column 6: ::= is needed here");
  EXPECT_EQ(fault("root ::= (\"a\""), "line 1, column 14: ')' is needed here");
  EXPECT_EQ(
      fault("root ::= \"\\q\""), "line 1, column 11: there is no such escape");
  EXPECT_EQ(
      fault("root ::= [b-a]"), "line 1, column 14: the range runs backwards");
  EXPECT_EQ(
      fault("root ::= \"a\"{5,2}"),
      "line 1, column 18: the greatest number of repetitions is below the "
      "least");
  EXPECT_EQ(
      fault("root ::= \"a\" ]"), "line 1, column 14: ']' is not expected here");
}

TEST(GbnfTest, ReadsCharacters) {
  GbnfGrammar grammar =
      parse_gbnf("# a comment\nroot ::= [^a-c\\]\\n\\x41é] # behind\n");
  const GbnfNode& node = grammar.nodes[size_t(grammar.rules[0].body)];
  // All but newline, A, ], a to c and U+00E9.
  EXPECT_EQ(
      node.set,
      (CharSet{
          {0, 9},
          {11, 0x40},
          {0x42, 0x5C},
          {0x5E, 0x60},
          {0x64, 0xE8},
          {0xEA, 0x10FFFF}}));
}

TEST(GbnfTest, RulesEndAtTheLineUnlessAGroupIsOpen) {
  GbnfGrammar grammar = parse_gbnf(
      "root ::= \"a\" |\n  \"b\"\n  | x (\n \"c\"\n )\nx ::= root?\n");
  ASSERT_EQ(grammar.rules.size(), 2u);
  EXPECT_EQ(grammar.nodes[size_t(grammar.rules[0].body)].children.size(), 3u);
}

TEST(GbnfTest, FoldsARuleWithoutRecursionIntoOneTerminal) {
  EXPECT_EQ(
      gbnf_to_lark("root ::= [a-b]+ \"c\"?"),
      "start: T0\nT0: ((/[\\x{61}-\\x{62}]/)+ (/[\\x{63}]/)?)\n");
}

TEST(GbnfTest, TakesApartWhatTheLongestMatchWouldSpoil) {
  // The letters must leave an "a" to the rule.
  std::string lark =
      gbnf_to_lark("root ::= w x\nx ::= \"a\" x | \".\"\nw ::= [a-z]*");
  EXPECT_THAT(lark, ::testing::Not(::testing::HasSubstr("]/)*")));
  // Digits end at any other character: they stay one terminal.
  lark = gbnf_to_lark("root ::= d | \"(\" root \")\"\nd ::= [0-9]+");
  EXPECT_THAT(lark, ::testing::HasSubstr("(/[\\x{30}-\\x{39}]/)+"));
}

}  // namespace
}  // namespace mlxcel
