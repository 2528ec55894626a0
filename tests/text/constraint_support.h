// A byte tokenizer's grammars, and random walks under them.
#pragma once

#include "text/byte_tokenizer.h"
#include "text/constraint.h"

#include <gtest/gtest.h>

#include <random>

namespace mlxcel::testing {

inline constexpr int32_t kEnd = 264, kTool = 265;

class ConstraintTest : public ::testing::Test {
 protected:
  std::unique_ptr<Tokenizer> tokenizer = byte_tokenizer({"<end>", "<tool>"});
  GrammarCompiler compiler{*tokenizer, {kEnd}};

  static bool allows(std::span<const uint32_t> mask, int32_t token) {
    size_t word = size_t(token) / 32;
    return word < mask.size() && (mask[word] >> (token % 32) & 1) != 0;
  }
  static std::vector<int32_t> allowed(Constraint& constraint) {
    std::vector<int32_t> out;
    std::span<const uint32_t> mask = constraint.mask();
    for (int32_t t = 0; t < int32_t(mask.size() * 32); ++t) {
      if (allows(mask, t)) {
        out.push_back(t);
      }
    }
    return out;
  }
  // Does the grammar take the bytes of the text as a whole?
  bool takes(const GrammarSource& source, std::string_view text) {
    auto constraint = compiler.compile(source)->start();
    for (char c : text) {
      if (!allows(constraint->mask(), int32_t(uint8_t(c)))) {
        return false;
      }
      constraint->accept(int32_t(uint8_t(c)));
    }
    return constraint->accepting();
  }
  // A text drawn token by token, evenly from the mask; "" when it took longer
  // than the limit.
  std::string draw(const Grammar& grammar, std::mt19937& random, int limit) {
    auto constraint = grammar.start();
    std::vector<int32_t> ids;
    for (int i = 0; i < limit; ++i) {
      std::vector<int32_t> next = allowed(*constraint);
      EXPECT_FALSE(next.empty());
      if (next.empty()) {
        return {};
      }
      int32_t token = next[random() % next.size()];
      if (token == kEnd) {
        EXPECT_TRUE(constraint->accepting());
        return tokenizer->decode(ids, true);
      }
      constraint->accept(token);
      ids.push_back(token);
    }
    return {};
  }
  std::string why(const GrammarSource& source) {
    try {
      compiler.compile(source);
    } catch (const TextError& error) {
      return error.why();
    }
    return "no error";
  }
};

}  // namespace mlxcel::testing
