// Constrained decoding over the vocabularies of published tokenizers.
#include "core/error.h"
#include "support/tokenizers.h"
#include "text/constraint.h"
#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

namespace mlxcel {
namespace {

// Every token of a real text is in the mask when its turn comes: what the
// vocabulary says of tokens is what the tokenizer does.
TEST(ConstraintTokenizersTest, TokensSpellTheirText) {
  const std::string text =
      "Hello w\u00f6rld, \u6f22\u5b57 \U0001f600\n\t{\"a\": 12}";
  int checked = 0;
  for (const std::string& name : testing::tokenizer_case_names()) {
    testing::TokenizerCase fixture = testing::load_tokenizer_case(name);
    if (!fixture.problem.empty()) {
      continue;  // the tokenizer's own tests report it
    }
    auto tokenizer = Tokenizer::load(fixture.folder);
    std::vector<int32_t> ids = tokenizer->encode_plain(text, false);
    if (std::any_of(ids.begin(), ids.end(), [&](int32_t id) {
          return tokenizer->is_special(id);  // <unk>, in small vocabularies
        })) {
      ids = tokenizer->encode_plain("hello", false);
    }
    std::string spelled = tokenizer->decode(ids, false);
    GrammarCompiler compiler(*tokenizer, {});
    std::string pattern = " ?";  // what SentencePiece puts in front
    for (char c : spelled) {
      pattern += std::string_view("{}\"").find(c) != std::string_view::npos
                     ? std::string("\\") + c
                     : std::string(1, c);
    }
    std::unique_ptr<Constraint> constraint;
    try {
      constraint = compiler.compile({GrammarKind::regex, pattern})->start();
    } catch (const TextError& error) {
      EXPECT_THAT(error.why(), ::testing::HasSubstr("decoder WordPiece"));
      continue;  // of encoders, which write no text
    }
    for (int32_t id : ids) {
      std::span<const uint32_t> mask = constraint->mask();
      ASSERT_TRUE(
          size_t(id) / 32 < mask.size() &&
          (mask[size_t(id) / 32] >> (id % 32) & 1) != 0)
          << name << ": " << tokenizer->token_text(id);
      constraint->accept(id);
    }
    EXPECT_TRUE(constraint->finished()) << name;
    ++checked;
  }
  EXPECT_GT(checked, 5);
}

}  // namespace
}  // namespace mlxcel
