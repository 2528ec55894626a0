#include "text/token_bytes.h"
#include "support/fixtures.h"
#include "text/tokenizer.h"

#include <gtest/gtest.h>

namespace mlxcel {
namespace {

using testing::fixture_root;

std::unique_ptr<Tokenizer> open(const char* name) {
  return Tokenizer::load(fixture_root() / "tokenizer" / name);
}

std::string joined(const Tokenizer& tokenizer, std::string_view text) {
  std::string out;
  for (int32_t id : tokenizer.encode(text, false)) {
    out += token_bytes(tokenizer, id);
  }
  return out;
}

// In NFC already. The second has every kind of character that tokens cut.
constexpr const char* kTexts[] = {
    "the sea, and 42 ships return",
    "na\u00efve caf\u00e9 \u6f22\u5b57 \U0001F600 \ufffd e",
    " \n\ttwo  spaces "};

TEST(TokenBytes, JoinToTheText) {
  auto bytes = open("small_bytelevel_bpe");
  auto pieces = open("small_spm_bpe_byte_fallback");
  for (const char* text : kTexts) {
    // This tokenizer writes a space in front of a text's first word.
    std::string got = joined(*bytes, text);
    EXPECT_EQ(got.substr(got.size() - std::string(text).size()), text);
    EXPECT_EQ(joined(*pieces, text), std::string(" ") + text);
  }
}

TEST(TokenBytes, PartsOfCharacters) {
  auto pieces = open("small_spm_bpe_byte_fallback");
  auto of = [&](const char* token) {
    return token_bytes(*pieces, pieces->token_id(token).value());
  };
  EXPECT_EQ(of("<0xE6>"), "\xE6");
  EXPECT_EQ(of("<0x0A>"), "\n");
  EXPECT_EQ(of("<s>"), "<s>");
  EXPECT_EQ(of("\u2581\u2581"), "  ");
  EXPECT_EQ(of("return"), "return");
  EXPECT_EQ(token_bytes(*pieces, 1 << 20), "");
  EXPECT_EQ(token_bytes(*pieces, -1), "");

  auto bytes = open("small_bytelevel_bpe");
  // 0xC3 is printable Latin-1, 0x80 is not: the first after the 33 below '!'
  // and DEL.
  EXPECT_EQ(token_bytes(*bytes, bytes->token_id("\u00c3").value()), "\xC3");
  EXPECT_EQ(token_bytes(*bytes, bytes->token_id("\u0122").value()), "\x80");
  EXPECT_EQ(token_bytes(*bytes, bytes->token_id("\u0120-").value()), " -");
}

TEST(TokenBytes, OtherDecodersGiveTheirText) {
  auto unigram = open("small_unigram");
  EXPECT_EQ(token_bytes(*unigram, unigram->token_id("the").value()), "the");
  auto words = open("small_wordpiece");
  EXPECT_EQ(token_bytes(*words, words->token_id("world").value()), "world");
}

// Unicode 15, 3.9: one U+FFFD for each maximal ill-formed part.
TEST(Utf8, IllFormedParts) {
  EXPECT_EQ(
      to_utf8("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64"),
      "a\ufffd\ufffd\ufffd"
      "b\ufffd"
      "c\ufffd\ufffd"
      "d");
  EXPECT_EQ(to_utf8("\xC0\xAF"), "\ufffd\ufffd");
  EXPECT_EQ(to_utf8("\xED\xA0\x80"), "\ufffd\ufffd\ufffd");
  EXPECT_FALSE(is_utf8("\xF4\x90\x80\x80"));
  EXPECT_FALSE(is_utf8("a\xC3"));
  EXPECT_TRUE(is_utf8("\u00e9\u6f22\U0001F600"));
  EXPECT_TRUE(is_utf8(""));
}

}  // namespace
}  // namespace mlxcel
