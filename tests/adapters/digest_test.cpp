#include "adapters/digest.h"

#include <gtest/gtest.h>

#include <vector>

namespace mlxcel {
namespace {

std::string sha256(std::string_view text) {
  Sha256 digest;
  digest.update(text.data(), text.size());
  return digest.hex();
}

// Examples of FIPS 180-4.
TEST(Sha256, MatchesThePublishedExamples) {
  EXPECT_EQ(
      sha256(""),
      "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(
      sha256("abc"),
      "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(EffectiveDigest, IsTheSameInAnyOrder) {
  std::vector<ScaledDigest> one = {{"aa", 1}, {"bb", 0.5f}};
  std::vector<ScaledDigest> other = {{"bb", 0.5f}, {"aa", 1}};
  EXPECT_EQ(effective_digest(one), effective_digest(other));
  // sha256 of "aa:3f800000\nbb:3f000000\n"
  EXPECT_EQ(effective_digest(one), sha256("aa:3f800000\nbb:3f000000\n"));
}

TEST(EffectiveDigest, LeavesZeroScalesOut) {
  std::vector<ScaledDigest> with_zero = {{"aa", 1}, {"bb", 0}, {"cc", -0.0f}};
  std::vector<ScaledDigest> without = {{"aa", 1}};
  EXPECT_EQ(effective_digest(with_zero), effective_digest(without));
  std::vector<ScaledDigest> none = {{"aa", 0}};
  EXPECT_EQ(effective_digest(none), "");
}

TEST(EffectiveDigest, TellsScalesAndRepeatsApart) {
  std::vector<ScaledDigest> half = {{"aa", 0.5f}};
  std::vector<ScaledDigest> full = {{"aa", 1}};
  std::vector<ScaledDigest> twice = {{"aa", 0.5f}, {"aa", 0.5f}};
  EXPECT_NE(effective_digest(half), effective_digest(full));
  EXPECT_NE(effective_digest(twice), effective_digest(full));
}

}  // namespace
}  // namespace mlxcel
