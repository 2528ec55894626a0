// Changes YAML text by its lines and scalars, so that most results still parse
// and reach the checks behind the parser.
#pragma once

#include <algorithm>
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

class YamlMutator {
 public:
  // `words`: scalars that the reader under test knows.
  YamlMutator(unsigned seed, std::span<const std::string_view> words)
      : random_(seed), words_(words) {}

  std::string mutate(std::string text, size_t max_size) {
    size_t rounds = 1 + pick(3);
    for (size_t i = 0; i < rounds; ++i) {
      size_t choice = pick(10);
      if (text.empty() || choice == 0) {
        text = mutate_bytes(std::move(text), max_size);
      } else if (choice < 4) {
        change_line(text);
      } else {
        change_scalar(text);
      }
    }
    text.resize(std::min(text.size(), max_size));
    return text;
  }

 private:
  struct Range {
    size_t begin = 0, end = 0;
  };

  size_t pick(size_t count) {
    return std::uniform_int_distribution<size_t>(0, count - 1)(random_);
  }

  static std::string mutate_bytes(std::string text, size_t max_size) {
    size_t size = text.size();
    text.resize(std::max(max_size, size));
    size = LLVMFuzzerMutate(
        reinterpret_cast<uint8_t*>(text.data()), size, text.size());
    text.resize(size);
    return text;
  }

  static std::vector<Range> lines(std::string_view text) {
    std::vector<Range> out;
    for (size_t begin = 0; begin < text.size();) {
      size_t end = std::min(text.find('\n', begin), text.size() - 1) + 1;
      out.push_back({begin, end});
      begin = end;
    }
    return out;
  }

  // Runs of what is neither space nor punctuation of the structure.
  static std::vector<Range> scalars(std::string_view text) {
    std::vector<Range> out;
    auto inside = [&](size_t at) {
      auto c = static_cast<unsigned char>(text[at]);
      return !std::isspace(c) && std::string_view(":,[]{}#").find(char(c)) ==
                                     std::string_view::npos;
    };
    for (size_t at = 0; at < text.size();) {
      size_t begin = at;
      while (at < text.size() && inside(at)) {
        ++at;
      }
      if (at > begin) {
        out.push_back({begin, at});
      } else {
        ++at;
      }
    }
    return out;
  }

  void change_line(std::string& text) {
    std::vector<Range> all = lines(text);
    Range line = all[pick(all.size())];
    Range other = all[pick(all.size())];
    std::string copy = text.substr(other.begin, other.end - other.begin);
    switch (pick(4)) {
      case 0:
        text.erase(line.begin, line.end - line.begin);
        return;
      case 1:
        text.insert(line.end, copy);
        return;
      case 2:  // another depth
        if (pick(2) == 0) {
          text.insert(line.begin, "  ");
        } else if (text.compare(line.begin, 2, "  ") == 0) {
          text.erase(line.begin, 2);
        }
        return;
      default: {  // repeat a block
        size_t begin = std::min(line.begin, other.begin);
        size_t end = std::max(line.end, other.end);
        std::string block =
            text.substr(begin, std::min<size_t>(end - begin, 600));
        text.insert(end, block);
      }
    }
  }

  void change_scalar(std::string& text) {
    std::vector<Range> all = scalars(text);
    if (all.empty()) {
      return;
    }
    Range scalar = all[pick(all.size())];
    Range other = all[pick(all.size())];
    std::string copy = text.substr(other.begin, other.end - other.begin);
    std::string fresh;
    switch (pick(4)) {
      case 0:
        fresh = number();
        break;
      case 1:
        fresh = copy;
        break;
      default:
        fresh = words_[pick(words_.size())];
    }
    text.replace(scalar.begin, scalar.end - scalar.begin, fresh);
  }

  std::string number() {
    static constexpr std::string_view kNumbers[] = {
        "0",     "1",          "-1",  "2",      "0.5",  "1e-5",
        "1e999", "4294967296", "0x2", "0o10",   "010",  "1_000",
        ".5",    "+1",         "1.",  "3.5e38", "1e39", "9223372036854775808",
        "~",     "null",       "yes", "\"1\"",  ".inf", "-9223372036854775809",
    };
    size_t choice = pick(std::size(kNumbers) + 4);
    return choice < std::size(kNumbers) ? std::string(kNumbers[choice])
                                        : std::to_string(pick(64));
  }

  std::minstd_rand random_;
  std::span<const std::string_view> words_;
};

}  // namespace mlxcel::fuzz
