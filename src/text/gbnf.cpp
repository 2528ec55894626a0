#include "text/gbnf.h"

#include "core/error.h"

#include <algorithm>
#include <map>
#include <optional>

namespace mlxcel {

namespace {

constexpr uint32_t kLastChar = 0x10FFFF;
constexpr int kMaxDepth = 100;         // of groups
constexpr int kMaxRepetitions = 2000;  // as llama.cpp's

CharSet normalized(CharSet set) {
  std::sort(set.begin(), set.end());
  CharSet out;
  for (const auto& [low, high] : set) {
    if (!out.empty() && low <= out.back().second + 1) {
      out.back().second = std::max(out.back().second, high);
    } else {
      out.push_back({low, high});
    }
  }
  return out;
}

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         (c >= '0' && c <= '9') || c == '-' || c == '_';
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  GbnfGrammar run() {
    space(true);
    while (!at_end()) {
      rule();
      space(true);
    }
    for (size_t i = 0; i < grammar_.rules.size(); ++i) {
      if (grammar_.rules[i].body < 0) {
        at_ = used_[i];
        fail(cat("there is no rule ", grammar_.rules[i].name));
      }
    }
    auto root = names_.find("root");
    if (root == names_.end()) {
      throw TextError(
          "the grammar cannot be used",
          "it has no rule named root",
          "name the rule to begin with root");
    }
    grammar_.root = root->second;
    return std::move(grammar_);
  }

 private:
  using Node = GbnfNode;
  using Kind = GbnfNode::Kind;

  [[noreturn]] void fail(const std::string& why) const {
    size_t line = 1, column = 1;
    for (size_t i = 0; i < std::min(at_, text_.size()); ++i) {
      column = text_[i] == '\n' ? 1 : column + 1;
      line += text_[i] == '\n';
    }
    throw TextError(
        "the grammar cannot be used",
        cat("line ", line, ", column ", column, ": ", why),
        "correct it there");
  }

  bool at_end() const {
    return at_ >= text_.size();
  }
  char peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  bool take(std::string_view wanted) {
    if (!text_.substr(at_).starts_with(wanted)) {
      return false;
    }
    at_ += wanted.size();
    return true;
  }

  void space(bool lines) {
    while (!at_end()) {
      char c = peek();
      if (c == '#') {
        while (!at_end() && peek() != '\n' && peek() != '\r') {
          ++at_;
        }
      } else if (c == ' ' || c == '\t' || (lines && (c == '\r' || c == '\n'))) {
        ++at_;
      } else {
        return;
      }
    }
  }

  std::string word() {
    size_t begin = at_;
    while (!at_end() && is_word(peek())) {
      ++at_;
    }
    if (at_ == begin) {
      fail("the name of a rule is needed here");
    }
    return std::string(text_.substr(begin, at_ - begin));
  }

  int rule_index(const std::string& name) {
    auto [found, fresh] = names_.try_emplace(name, int(grammar_.rules.size()));
    if (fresh) {
      grammar_.rules.push_back({name, -1});
      used_.push_back(at_);
    }
    return found->second;
  }

  int add(Node node) {
    grammar_.nodes.push_back(std::move(node));
    return int(grammar_.nodes.size()) - 1;
  }

  void rule() {
    size_t begin = at_;
    int index = rule_index(word());
    space(false);
    if (!take("::=")) {
      fail("::= is needed here");
    }
    space(true);
    int body = choice(0);
    if (grammar_.rules[size_t(index)].body >= 0) {
      at_ = begin;
      fail(
          cat("the rule ",
              grammar_.rules[size_t(index)].name,
              " is defined twice"));
    }
    grammar_.rules[size_t(index)].body = body;
    if (!at_end() && peek() != '\n' && peek() != '\r') {
      fail(cat("'", text_.substr(at_, 1), "' is not expected here"));
    }
  }

  int choice(int depth) {
    if (depth > kMaxDepth) {
      fail(cat("groups are nested deeper than ", kMaxDepth, " levels"));
    }
    Node node;
    node.kind = Kind::choice;
    node.children.push_back(sequence(depth));
    while (true) {
      size_t before = at_;
      space(true);
      if (!take("|")) {
        at_ = depth > 0 ? at_ : before;
        break;
      }
      space(true);
      node.children.push_back(sequence(depth));
    }
    return node.children.size() == 1 ? node.children[0] : add(std::move(node));
  }

  int sequence(int depth) {
    Node node;
    while (true) {
      std::optional<int> next = element(depth);
      if (!next) {
        break;
      }
      space(depth > 0);
      node.children.push_back(repetition(*next, depth));
    }
    return node.children.size() == 1 ? node.children[0] : add(std::move(node));
  }

  std::optional<int> element(int depth) {
    char c = peek();
    if (c == '"') {
      return literal();
    }
    if (c == '[') {
      return char_class();
    }
    if (c == '.') {
      ++at_;
      return chars({{0, kLastChar}});
    }
    if (c == '(') {
      ++at_;
      space(true);
      int inner = choice(depth + 1);
      space(true);
      if (!take(")")) {
        fail("')' is needed here");
      }
      return inner;
    }
    if (c == '<' || (c == '!' && peek(1) == '<')) {
      return token();
    }
    // A name followed by ::= begins the next rule.
    if (is_word(c)) {
      size_t begin = at_;
      std::string name = word();
      size_t behind = at_;
      space(false);
      if (text_.substr(at_).starts_with("::=")) {
        at_ = begin;
        return std::nullopt;
      }
      at_ = behind;
      Node node;
      node.kind = Kind::rule;
      node.rule = rule_index(name);
      return add(std::move(node));
    }
    return std::nullopt;
  }

  int repetition(int inner, int depth) {
    for (int count = 0;; ++count) {
      if (count > kMaxDepth) {
        fail("too many repetitions of repetitions");
      }
      Node node;
      node.kind = Kind::repeat;
      if (take("*")) {
      } else if (take("+")) {
        node.min = 1;
      } else if (take("?")) {
        node.max = 1;
      } else if (take("{")) {
        bounds(&node);
      } else {
        return inner;
      }
      if (node.max == 0) {
        node = Node();
        node.kind = Kind::sequence;  // of nothing
      } else {
        node.children = {inner};
      }
      inner = add(std::move(node));
      space(depth > 0);
    }
  }

  int number() {
    size_t begin = at_;
    int value = 0;
    while (peek() >= '0' && peek() <= '9') {
      value = std::min(value * 10 + (peek() - '0'), kMaxRepetitions + 1);
      ++at_;
    }
    if (at_ == begin) {
      fail("a number is needed here");
    }
    if (value > kMaxRepetitions) {
      at_ = begin;
      fail(cat("at most ", kMaxRepetitions, " repetitions can be asked for"));
    }
    return value;
  }

  void bounds(Node* node) {
    space(false);
    node->min = node->max = number();
    space(false);
    if (take(",")) {
      space(false);
      node->max = peek() == '}' ? -1 : number();
      space(false);
    }
    if (!take("}")) {
      fail("'}' is needed here");
    }
    if (node->max >= 0 && node->max < node->min) {
      fail("the greatest number of repetitions is below the least");
    }
  }

  int chars(CharSet set) {
    Node node;
    node.kind = Kind::chars;
    node.set = std::move(set);
    return add(std::move(node));
  }

  int literal() {
    ++at_;
    Node node;
    while (peek() != '"' || at_end()) {
      if (at_end() || peek() == '\n') {
        fail("the string has no end");
      }
      uint32_t c = character();
      node.children.push_back(chars({{c, c}}));
    }
    ++at_;
    return node.children.size() == 1 ? node.children[0] : add(std::move(node));
  }

  int char_class() {
    ++at_;
    bool negated = take("^");
    CharSet set;
    while (peek() != ']' || at_end()) {
      if (at_end() || peek() == '\n') {
        fail("the character class has no end");
      }
      uint32_t low = character(), high = low;
      if (peek() == '-' && peek(1) != ']') {
        ++at_;
        if (at_end()) {
          fail("the character class has no end");
        }
        high = character();
        if (high < low) {
          fail("the range runs backwards");
        }
      }
      set.push_back({low, high});
    }
    ++at_;
    set = normalized(std::move(set));
    set = negated ? complement(set) : set;
    if (set.empty()) {
      fail("the character class is empty");
    }
    return chars(std::move(set));
  }

  uint32_t hex(int digits) {
    uint32_t value = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      char c = peek();
      int digit = c >= '0' && c <= '9'   ? c - '0'
                  : c >= 'a' && c <= 'f' ? c - 'a' + 10
                  : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                         : -1;
      if (digit < 0) {
        fail(cat("the escape needs ", digits, " hexadecimal digits"));
      }
      value = value * 16 + uint32_t(digit);
    }
    if (value > kLastChar || (value >= 0xD800 && value < 0xE000)) {
      fail("the escape names no character");
    }
    return value;
  }

  uint32_t character() {
    if (take("\\")) {
      char c = peek();
      ++at_;
      switch (c) {
        case 'x':
          return hex(2);
        case 'u':
          return hex(4);
        case 'U':
          return hex(8);
        case 't':
          return '\t';
        case 'r':
          return '\r';
        case 'n':
          return '\n';
        case '\\':
        case '"':
        case '[':
        case ']':
        case '-':
        case '^':
          return uint32_t(c);
        default:
          at_ -= 2;
          fail("there is no such escape");
      }
    }
    uint8_t lead = uint8_t(peek());
    int more = lead < 0x80             ? 0
               : (lead & 0xE0) == 0xC0 ? 1
               : (lead & 0xF0) == 0xE0 ? 2
               : (lead & 0xF8) == 0xF0 ? 3
                                       : -1;
    uint32_t value = more <= 0 ? lead : lead & (0x3Fu >> more);
    for (int i = 1; i <= more; ++i) {
      uint8_t next = uint8_t(peek(size_t(i)));
      more = (next & 0xC0) == 0x80 ? more : -1;
      value = value << 6 | (next & 0x3Fu);
    }
    if (more < 0 || value > kLastChar || (value >= 0xD800 && value < 0xE000)) {
      fail("the text is no UTF-8");
    }
    at_ += size_t(more) + 1;
    return value;
  }

  int token() {
    if (peek() == '!') {
      fail("'!' before a token is not supported");
    }
    size_t end = text_.find('>', at_);
    if (end == std::string_view::npos ||
        text_.substr(at_, end - at_).find_first_of("\n\"") !=
            std::string_view::npos) {
      fail("the token has no '>'");
    }
    Node node;
    node.kind = Kind::token;
    node.token = std::string(text_.substr(at_, end + 1 - at_));
    at_ = end + 1;
    return add(std::move(node));
  }

  std::string_view text_;
  size_t at_ = 0;
  GbnfGrammar grammar_;
  std::map<std::string, int, std::less<>> names_;
  std::vector<size_t> used_;  // where a rule is named first
};

}  // namespace

CharSet unite(const CharSet& a, const CharSet& b) {
  CharSet both = a;
  both.insert(both.end(), b.begin(), b.end());
  return normalized(std::move(both));
}

CharSet complement(const CharSet& set) {
  CharSet out;
  uint32_t next = 0;
  for (const auto& [low, high] : set) {
    if (low > next) {
      out.push_back({next, low - 1});
    }
    next = high + 1;
  }
  if (next <= kLastChar) {
    out.push_back({next, kLastChar});
  }
  return out;
}

bool intersects(const CharSet& a, const CharSet& b) {
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (a[i].second < b[j].first) {
      ++i;
    } else if (b[j].second < a[i].first) {
      ++j;
    } else {
      return true;
    }
  }
  return false;
}

GbnfGrammar parse_gbnf(std::string_view text) {
  return Parser(text).run();
}

}  // namespace mlxcel
