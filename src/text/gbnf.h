// GBNF, llama.cpp's grammar notation: read, and written as Lark.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mlxcel {

// Code points, as sorted ranges that neither touch nor overlap.
using CharSet = std::vector<std::pair<uint32_t, uint32_t>>;

CharSet unite(const CharSet& a, const CharSet& b);
CharSet complement(const CharSet& set);
bool intersects(const CharSet& a, const CharSet& b);

struct GbnfNode {
  enum class Kind : uint8_t { chars, sequence, choice, repeat, rule, token };
  Kind kind = Kind::sequence;
  CharSet set;                // chars: one code point out of these
  std::vector<int> children;  // nodes; one for repeat
  int min = 0, max = -1;      // repeat; -1: no limit
  int rule = -1;
  std::string token;  // "<name>" or "<[id]>"
};

struct GbnfGrammar {
  std::vector<GbnfNode> nodes;
  struct Rule {
    std::string name;
    int body = -1;  // node
  };
  std::vector<Rule> rules;
  int root = -1;
};

// Throws TextError with line and column.
GbnfGrammar parse_gbnf(std::string_view text);

// The same language in llguidance's Lark. Its lexer takes the longest match, so
// parts without recursion become terminals only where no shorter match could
// go on; the others are matched by the character.
std::string gbnf_to_lark(std::string_view text);

}  // namespace mlxcel
