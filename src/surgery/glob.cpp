#include "surgery/glob.h"

#include "core/error.h"

#include <algorithm>

namespace mlxcel {

Glob::Glob(std::string pattern) : text_(std::move(pattern)) {
  if (text_.empty()) {
    throw SurgeryError(
        "the pattern is empty",
        "it would match no tensor",
        "write a tensor key, with * for any characters");
  }
  for (size_t i = 0; i < text_.size(); ++i) {
    Part part{Part::literal, text_[i], {}, false};
    if (text_[i] == '*') {
      part.kind = Part::any;
    } else if (text_[i] == '?') {
      part.kind = Part::one;
    } else if (text_[i] == '[') {
      part.kind = Part::set;
      size_t close = text_.find(']', i + 1);
      // A bracket right after the opening one is a member of the class.
      size_t begin = i + 1;
      if (begin < text_.size() &&
          (text_[begin] == '!' || text_[begin] == '^')) {
        part.negated = true;
        ++begin;
      }
      if (close == begin) {
        close = text_.find(']', begin + 1);
      }
      if (close == std::string::npos) {
        throw SurgeryError(
            cat("bad pattern ", text_),
            cat("the class that opens at character ", i + 1, " is not closed"),
            "close it with ], or write [[] for a bracket itself");
      }
      for (size_t j = begin; j < close; ++j) {
        unsigned char low = static_cast<unsigned char>(text_[j]);
        unsigned char high = low;
        if (j + 2 < close && text_[j + 1] == '-') {
          high = static_cast<unsigned char>(text_[j + 2]);
          j += 2;
        }
        if (high < low) {
          throw SurgeryError(
              cat("bad pattern ", text_),
              cat("the range ", char(low), "-", char(high), " runs backwards"),
              "write the smaller character first");
        }
        part.ranges.emplace_back(low, high);
      }
      i = close;
    }
    parts_.push_back(std::move(part));
  }
}

bool Glob::Part::accepts(char c) const {
  switch (kind) {
    case literal:
      return c == letter;
    case one:
      return true;
    case set: {
      unsigned char u = static_cast<unsigned char>(c);
      bool inside = std::any_of(ranges.begin(), ranges.end(), [u](auto& r) {
        return r.first <= u && u <= r.second;
      });
      return inside != negated;
    }
    case any:
      break;
  }
  return false;
}

size_t Glob::stars() const {
  return size_t(std::count_if(parts_.begin(), parts_.end(), [](auto& part) {
    return part.kind == Part::any;
  }));
}

// A table over (part, position), filled from the end: whether the parts from
// `part` on match the key from `position` on. Many stars cost no more than
// their number times the key's length, and no stack.
std::optional<std::vector<std::string>> Glob::captures(
    std::string_view key) const {
  const size_t columns = key.size() + 1;
  std::vector<bool> fits((parts_.size() + 1) * columns, false);
  fits[parts_.size() * columns + key.size()] = true;
  for (size_t part = parts_.size(); part-- > 0;) {
    for (size_t at = columns; at-- > 0;) {
      bool rest = fits[(part + 1) * columns + at];
      if (parts_[part].kind == Part::any) {
        rest = rest || (at < key.size() && fits[part * columns + at + 1]);
      } else {
        rest = at < key.size() && parts_[part].accepts(key[at]) &&
               fits[(part + 1) * columns + at + 1];
      }
      fits[part * columns + at] = rest;
    }
  }
  if (!fits[0]) {
    return std::nullopt;
  }
  std::vector<std::string> out;
  size_t at = 0;
  for (size_t part = 0; part < parts_.size(); ++part) {
    if (parts_[part].kind != Part::any) {
      ++at;
      continue;
    }
    size_t begin = at;
    while (!fits[(part + 1) * columns + at]) {
      ++at;
    }
    out.emplace_back(key.substr(begin, at - begin));
  }
  return out;
}

bool Glob::matches(std::string_view key) const {
  return captures(key).has_value();
}

std::string fill_stars(
    std::string_view pattern, const std::vector<std::string>& captures) {
  std::string out;
  size_t next = 0;
  for (char c : pattern) {
    if (c == '*' && next < captures.size()) {
      out += captures[next++];
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace mlxcel
