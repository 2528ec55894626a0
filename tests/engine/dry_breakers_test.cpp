#include "engine/dry_breakers.h"

#include "core/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mlxcel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(DryBreakers, AreTheTokensThatHoldOneOfTheTexts) {
  std::unique_ptr<Tokenizer> tokenizer = Tokenizer::from_json(
      R"({"model": {"type": "WordLevel", "unk_token": "a", "vocab":
          {"a": 0, ":": 1, "b:c": 2, "::": 3, "cb": 4, "bc": 5}}})",
      "test");
  TokenTexts texts(*tokenizer);
  for (int time = 0; time < 2; ++time) {  // the second from what is remembered
    EXPECT_THAT(texts.holding({":"}), ElementsAre(1, 2, 3));
    EXPECT_THAT(texts.holding({"bc", "::"}), ElementsAre(3, 5));
    EXPECT_THAT(texts.holding({"x"}), IsEmpty());
    EXPECT_THAT(texts.holding({}), IsEmpty());
  }
}

TEST(DryBreakers, RefuseAnEmptyText) {
  try {
    check_dry_breakers({":", ""});
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("empty DRY sequence breaker"));
    EXPECT_THAT(error.what(), HasSubstr("every token's text holds it"));
  }
  check_dry_breakers(default_dry_breakers());
  check_dry_breakers({});
}

}  // namespace
}  // namespace mlxcel
