// Changes JSON text by its tokens, so that most results still parse and reach
// the checks behind the parser.
#pragma once

#include <cctype>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max);

namespace mlxcel::fuzz {

struct Token {
  size_t begin = 0, end = 0;
  std::string_view of(std::string_view text) const {
    return text.substr(begin, end - begin);
  }
};

// Strings, words and numbers, and single other characters; spaces are skipped.
inline std::vector<Token> json_tokens(std::string_view text) {
  std::vector<Token> out;
  size_t at = 0;
  while (at < text.size()) {
    auto c = static_cast<unsigned char>(text[at]);
    size_t begin = at++;
    if (std::isspace(c)) {
      continue;
    }
    if (c == '"') {
      while (at < text.size() && text[at] != '"') {
        at += text[at] == '\\' ? 2 : 1;
      }
      at = std::min(at + 1, text.size());
    } else if (std::isalnum(c) || c == '-') {
      while (at < text.size() &&
             (std::isalnum(static_cast<unsigned char>(text[at])) ||
              text[at] == '.' || text[at] == '-' || text[at] == '+')) {
        ++at;
      }
    }
    out.push_back({begin, at});
  }
  return out;
}

class JsonMutator {
 public:
  // `words`: tokens that the reader under test knows, with their quotes.
  JsonMutator(unsigned seed, std::span<const std::string_view> words)
      : random_(seed), words_(words) {}

  std::string mutate(std::string text, size_t max_size) {
    size_t rounds = 1 + pick(3);
    for (size_t i = 0; i < rounds; ++i) {
      std::vector<Token> tokens = json_tokens(text);
      if (tokens.empty() || pick(8) == 0) {
        text = mutate_bytes(text, max_size);
      } else {
        change(text, tokens);
      }
    }
    if (text.size() > max_size) {
      text.resize(max_size);
    }
    return text;
  }

  size_t pick(size_t count) {
    return std::uniform_int_distribution<size_t>(0, count - 1)(random_);
  }

 private:
  static std::string mutate_bytes(std::string text, size_t max_size) {
    size_t size = text.size();
    text.resize(std::max(max_size, size));
    size = LLVMFuzzerMutate(
        reinterpret_cast<uint8_t*>(text.data()), size, text.size());
    text.resize(size);
    return text;
  }

  std::string number() {
    static constexpr std::string_view kNumbers[] = {
        "0",    "1",        "-1",         "2",
        "8",    "64",       "4294967295", "4294967296",
        "1.5",  "1e-5",     "1e999",      "9223372036854775807",
        "null", "-0",       "007",        "18446744073709551615",
        "NaN",  "Infinity", "true",       "18446744073709551616",
        "[]",   "{}",       "\"\"",       "4611686018427387904",
    };
    size_t choice = pick(std::size(kNumbers) + 4);
    return choice < std::size(kNumbers) ? std::string(kNumbers[choice])
                                        : std::to_string(pick(4096));
  }

  void change(std::string& text, const std::vector<Token>& tokens) {
    Token token = tokens[pick(tokens.size())];
    Token other = tokens[pick(tokens.size())];
    std::string copy(other.of(text));
    bool is_value =
        text[token.begin] == '"' ||
        std::isalnum(static_cast<unsigned char>(text[token.begin])) ||
        text[token.begin] == '-';
    switch (pick(7)) {
      case 0:  // another number
        if (is_value) {
          text.replace(token.begin, token.end - token.begin, number());
        }
        break;
      case 1:  // a word of the format
        if (is_value && !words_.empty()) {
          text.replace(
              token.begin,
              token.end - token.begin,
              words_[pick(words_.size())]);
        }
        break;
      case 2:  // what stands elsewhere: equal keys, equal offsets
        if (is_value) {
          text.replace(token.begin, token.end - token.begin, copy);
        }
        break;
      case 3:
        text.erase(token.begin, token.end - token.begin);
        break;
      case 4:
        text.insert(token.end, copy);
        break;
      case 5: {  // repeat a run of tokens
        size_t begin = std::min(token.begin, other.begin);
        size_t end = std::max(token.end, other.end);
        std::string run =
            text.substr(begin, std::min<size_t>(end - begin, 400));
        text.insert(end, (pick(2) == 0 ? "," : "") + run);
        break;
      }
      default: {  // nest
        static constexpr std::string_view kOpen[] = {
            "[", "{\"a\":", "/*", "//"};
        static constexpr std::string_view kClose[] = {"]", "}", "*/", "\n"};
        size_t kind = pick(std::size(kOpen));
        text.insert(token.end, kClose[kind]);
        text.insert(token.begin, kOpen[kind]);
      }
    }
  }

  std::minstd_rand random_;
  std::span<const std::string_view> words_;
};

}  // namespace mlxcel::fuzz
