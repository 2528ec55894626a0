#include "text/reasoning.h"

#include "core/error.h"

#include <gtest/gtest.h>

namespace mlxcel {
namespace {

constexpr Marks kThink = {"<think>", "</think>"};

std::pair<std::string, std::string> split(
    std::string_view text,
    size_t step,
    ReasoningFormat format = ReasoningFormat::deepseek,
    PromptEnd prompt = PromptEnd::answer) {
  ReasoningSplitter splitter(kThink, format, prompt);
  std::string thoughts, answer;
  for (size_t at = 0; at < text.size(); at += step) {
    thoughts += splitter.push(text.substr(at, step), &answer);
  }
  thoughts += splitter.finish(&answer);
  return {thoughts, answer};
}

using Pair = std::pair<std::string, std::string>;

TEST(ReasoningTest, SplitsHoweverTheTextIsCut) {
  for (size_t step = 1; step < 40; ++step) {
    EXPECT_EQ(
        split("<think>\na <b\n\n</think>\n\nc d", step), Pair("a <b", "c d"));
    EXPECT_EQ(
        split("plain </think> text", step), Pair("", "plain </think> text"));
    EXPECT_EQ(split(" <thin", step), Pair("", " <thin"));
    EXPECT_EQ(split("<think>cut o", step), Pair("cut o", ""));
    EXPECT_EQ(split("<think>a</thi", step), Pair("a</thi", ""));
    EXPECT_EQ(split("<think></think>x", step), Pair("", "x"));
    EXPECT_EQ(split("<think>a</think>b<think>c", step), Pair("a", "b<think>c"));
  }
}

TEST(ReasoningTest, ThePromptMayHaveOpenedTheThoughts) {
  for (size_t step : {1, 3, 100}) {
    auto open = [&](std::string_view text) {
      return split(text, step, ReasoningFormat::deepseek, PromptEnd::thinking);
    };
    EXPECT_EQ(open("a\n</think>\nb"), Pair("a", "b"));
    EXPECT_EQ(open("\n<think>a</think>b"), Pair("a", "b"));
    EXPECT_EQ(open("never closed"), Pair("never closed", ""));
  }
  EXPECT_EQ(end_of_prompt("x<think>\n", kThink), PromptEnd::thinking);
  EXPECT_EQ(
      end_of_prompt("<think>\n\n</think>\n\n", kThink), PromptEnd::answer);
}

TEST(ReasoningTest, KeepsTheMarksWhereAsked) {
  std::string text = "<think>\na\n</think>\n\nb";
  for (size_t step : {1, 4, 100}) {
    EXPECT_EQ(split(text, step, ReasoningFormat::none), Pair("", text));
    EXPECT_EQ(
        split(text, step, ReasoningFormat::deepseek_legacy), Pair("a", text));
  }
  EXPECT_EQ(reasoning_format("auto"), ReasoningFormat::deepseek);
  EXPECT_THROW(reasoning_format("x"), UsageError);
}

}  // namespace
}  // namespace mlxcel
