#include "surgery/glob.h"

#include "core/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mlxcel {
namespace {

using ::testing::ElementsAre;

TEST(Glob, IsAnchoredAndLiteralBesideItsWildcards) {
  EXPECT_TRUE(Glob("model.norm.weight").matches("model.norm.weight"));
  EXPECT_FALSE(Glob("model.norm").matches("model.norm.weight"));
  EXPECT_FALSE(Glob("norm.weight").matches("model.norm.weight"));
  EXPECT_FALSE(Glob("modelxnorm").matches("model.norm"));
  EXPECT_FALSE(Glob("Model.*").matches("model.norm"));
  EXPECT_FALSE(Glob("model.(0|1)").matches("model.0"));
}

TEST(Glob, StarCrossesDotsAndQuestionMarkIsOneCharacter) {
  EXPECT_TRUE(Glob("model.layers.*.*").matches("model.layers.3.mlp.up.weight"));
  EXPECT_TRUE(Glob("*").matches(""));
  EXPECT_TRUE(Glob("a*").matches("a"));
  EXPECT_TRUE(Glob("?_proj").matches("q_proj"));
  EXPECT_FALSE(Glob("?_proj").matches("qk_proj"));
}

TEST(Glob, ClassesAndTheirNegation) {
  EXPECT_TRUE(Glob("l[0-3]").matches("l2"));
  EXPECT_FALSE(Glob("l[0-3]").matches("l4"));
  EXPECT_TRUE(Glob("l[!0-3]").matches("l4"));
  EXPECT_FALSE(Glob("l[^ab]").matches("la"));
  EXPECT_TRUE(Glob("l[]a]").matches("l]"));
  EXPECT_TRUE(Glob("l[[]").matches("l["));
  EXPECT_TRUE(Glob("l[a-]").matches("l-"));
}

TEST(Glob, CapturesGoOverInOrderAndAreShortest) {
  Glob glob("model.layers.*.mlp.*_proj.weight");
  EXPECT_THAT(
      *glob.captures("model.layers.11.mlp.up_proj.weight"),
      ElementsAre("11", "up"));
  EXPECT_THAT(*Glob("*.*").captures("a.b.c"), ElementsAre("a", "b.c"));
  EXPECT_EQ(fill_stars("blocks.*.ff.*.w", {"11", "up"}), "blocks.11.ff.up.w");
}

TEST(Glob, ManyStarsStayCheap) {
  // Exponential without memory: 30 stars over a key that almost matches.
  std::string pattern;
  for (int i = 0; i < 30; ++i) {
    pattern += "*a";
  }
  EXPECT_FALSE(Glob(pattern + "b").matches(std::string(500, 'a')));
}

TEST(Glob, AHundredThousandStarsNeedNoStack) {
  EXPECT_TRUE(Glob(std::string(100000, '*')).matches("model.norm.weight"));
}

TEST(Glob, RefusesWhatCannotBeMeant) {
  for (const char* pattern : {"", "a[0", "a[", "a[]", "a[3-1]"}) {
    EXPECT_THROW(Glob{pattern}, SurgeryError) << pattern;
  }
}

}  // namespace
}  // namespace mlxcel
