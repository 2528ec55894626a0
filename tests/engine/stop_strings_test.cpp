#include "engine/stop_strings.h"

#include "core/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mlxcel {
namespace {

struct Outcome {
  std::string text;
  std::optional<size_t> stop;
};

// The text in pieces of `size` bytes; also checks that no piece goes past the
// cut.
Outcome cut(
    const std::string& text, std::vector<std::string> stops, size_t size) {
  StopStrings stream(std::move(stops));
  Outcome out;
  for (size_t i = 0; i < text.size() && !stream.matched(); i += size) {
    out.text += stream.push(text.substr(i, size));
  }
  out.text += stream.finish();
  out.stop = stream.matched();
  return out;
}

struct Case {
  std::vector<std::string> stops;
  std::string text;  // of uvw-klm
  std::optional<size_t> stop;
};

TEST(StopStrings, EarliestBeginningWinsHoweverTheTextIsCut) {
  const Case cases[] = {
      {{}, "uvw-klm", {}},
      {{"w-k"}, "uv", 0},
      {{"w-Q"}, "uvw-klm", {}},
      {{"-k", "w-k"}, "uv", 1},
      {{"klm"}, "uvw-", 0},
      {{"lmX"}, "uvw-klm", {}},
      {{"u"}, "", 0},
      // The later ends first, but begins after one that is still open.
      {{"-k", "w-klm"}, "uv", 1},
      {{"-k", "w-klmX"}, "uvw", 0},
      // Both begin at the same place: the order of the list decides.
      {{"w-k", "w-"}, "uv", 0},
      {{"w-", "w-k"}, "uv", 0},
      {{"w-kX", "w-"}, "uv", 1},
  };
  for (const Case& c : cases) {
    for (size_t size : {1u, 2u, 3u, 7u}) {
      Outcome got = cut("uvw-klm", c.stops, size);
      EXPECT_EQ(got.text, c.text) << ::testing::PrintToString(c.stops) << size;
      EXPECT_EQ(got.stop, c.stop) << ::testing::PrintToString(c.stops) << size;
    }
  }
}

TEST(StopStrings, HoldsBackOnlyWhatMayBeginAMatch) {
  StopStrings stream({"abcab"});
  EXPECT_EQ(stream.push("xab"), "x");
  EXPECT_EQ(stream.push("c"), "");
  EXPECT_EQ(stream.push("abd"), "");  // matched at 1
  EXPECT_EQ(stream.matched(), 0u);

  StopStrings other({"abcab"});
  EXPECT_EQ(other.push("abca"), "");
  EXPECT_EQ(other.push("x"), "abcax");
  EXPECT_EQ(other.push("ab"), "");
  EXPECT_EQ(other.finish(), "ab");
  EXPECT_FALSE(other.matched());
}

TEST(StopStrings, NothingFollowsAMatch) {
  StopStrings stream({"."});
  EXPECT_EQ(stream.push("one. two"), "one");
  EXPECT_EQ(stream.push("three"), "");
  EXPECT_EQ(stream.finish(), "");
}

TEST(StopStrings, RefusesAnEmptyOne) {
  EXPECT_THAT(
      [] { StopStrings({"a", ""}); },
      ::testing::ThrowsMessage<UsageError>(
          ::testing::HasSubstr("empty stop string")));
}

}  // namespace
}  // namespace mlxcel
