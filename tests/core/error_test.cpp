#include "core/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mlxcel {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ErrorTest, TheMessageHoldsWhatWhyAndFix) {
  CheckpointError error("cannot read a.bin", "it is empty", "copy it again");
  EXPECT_STREQ(error.what(), "cannot read a.bin: it is empty\n  copy it again");
  EXPECT_EQ(error.summary(), "cannot read a.bin");
  EXPECT_EQ(error.why(), "it is empty");
  EXPECT_EQ(error.fix(), "copy it again");
}

TEST(ErrorTest, EmptyPartsLeaveNoPunctuation) {
  EXPECT_STREQ(Error("cannot read a.bin").what(), "cannot read a.bin");
  EXPECT_STREQ(
      Error("cannot read a.bin", "", "copy it").what(),
      "cannot read a.bin\n  copy it");
}

TEST(ErrorTest, NearestNamesComeByDistanceAndOnlyWhenNear) {
  EXPECT_THAT(
      nearest_names("qwen3", {"llama", "qwen2", "gemma", "qwen3_moe"}, 1),
      ElementsAre("qwen2"));
  EXPECT_THAT(nearest_names("qwen3", {"starcoder2"}), IsEmpty());
}

TEST(ErrorTest, CatJoinsAnythingThatFormats) {
  EXPECT_EQ(cat("layer ", 3, " of ", 2.5), "layer 3 of 2.5");
  EXPECT_EQ(cat(), "");
}

}  // namespace
}  // namespace mlxcel
