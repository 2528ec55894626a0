#include "text/template_source.h"

#include <algorithm>
#include <cctype>

namespace mlxcel {

namespace {

bool is_space(char c) {
  return std::isspace(static_cast<unsigned char>(c)) != 0;
}
bool is_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

class Adapter {
 public:
  explicit Adapter(std::string_view source) : source_(source) {}

  std::string run() {
    while (at_ < source_.size()) {
      if (starts("{#")) {
        copy_through("#}");
      } else if (starts("{%")) {
        block();
      } else if (starts("{{")) {
        copy(2);
        expression("}}");
      } else {
        copy(1);
      }
    }
    return std::move(out_);
  }

 private:
  bool starts(std::string_view text) const {
    return source_.substr(at_).starts_with(text);
  }
  void copy(size_t count) {
    out_ += source_.substr(at_, count);
    at_ = std::min(at_ + count, source_.size());
  }
  void copy_through(std::string_view end) {
    size_t found = source_.find(end, at_);
    copy(
        found == std::string_view::npos ? source_.size() - at_
                                        : found + end.size() - at_);
  }
  void copy_spaces() {
    while (at_ < source_.size() && is_space(source_[at_])) {
      copy(1);
    }
  }

  // A tag from {% on: the first word decides.
  void block() {
    copy(2);
    while (starts("-") || starts("+")) {
      copy(1);
    }
    copy_spaces();
    size_t end = at_;
    while (end < source_.size() && is_name(source_[end])) {
      ++end;
    }
    std::string_view word = source_.substr(at_, end - at_);
    if (word == "raw") {
      size_t close = source_.find("endraw", at_);
      copy(
          close == std::string_view::npos ? source_.size() - at_ : close - at_);
    } else if (word == "generation" || word == "endgeneration") {
      out_ += word == "generation" ? "if true" : "endif";
      at_ = end;
    }
    expression("%}");
  }

  void expression(std::string_view end) {
    while (at_ < source_.size()) {
      if (starts(end)) {
        copy(end.size());
        return;
      }
      if (starts("'") || starts("\"")) {
        string();
        percent_operator();
      } else {
        copy(1);
      }
    }
  }

  // The end of the string literal that starts at `at`.
  size_t string_end(size_t at) const {
    char quote = source_[at];
    for (++at; at < source_.size(); ++at) {
      if (source_[at] == '\\') {
        ++at;
      } else if (source_[at] == quote) {
        return at + 1;
      }
    }
    return source_.size();
  }
  void string() {
    copy(string_end(at_) - at_);
  }

  // Behind a string literal: `% (...)` or `% name.attribute[...]`.
  void percent_operator() {
    size_t next = at_;
    while (next < source_.size() && is_space(source_[next])) {
      ++next;
    }
    if (next + 1 >= source_.size() || source_[next] != '%' ||
        source_[next + 1] == '}') {
      return;
    }
    ++next;
    while (next < source_.size() && is_space(source_[next])) {
      ++next;
    }
    size_t end = operand_end(next);
    if (end == next) {
      return;
    }
    std::string_view operand = source_.substr(next, end - next);
    bool list = operand.starts_with('(');
    out_ += list ? "|format" : "|format(";
    out_ += adapt_inside(operand);
    out_ += list ? "" : ")";
    at_ = end;
  }

  static std::string adapt_inside(std::string_view operand) {
    Adapter inner(operand);
    inner.expression("\1");  // ends with the text: no template holds that byte
    return std::move(inner.out_);
  }

  // A name, number or string with its attributes, items and calls, or
  // something in brackets.
  size_t operand_end(size_t at) const {
    while (at < source_.size()) {
      char c = source_[at];
      if (is_name(c) || c == '.') {
        ++at;
      } else if (c == '(' || c == '[' || c == '{') {
        at = bracket_end(at);
      } else if (c == '\'' || c == '"') {
        at = string_end(at);
      } else {
        break;
      }
    }
    return at;
  }

  size_t bracket_end(size_t at) const {
    int depth = 0;
    while (at < source_.size()) {
      char c = source_[at];
      if (c == '\'' || c == '"') {
        at = string_end(at);
        continue;
      }
      depth += c == '(' || c == '[' || c == '{' ? 1 : 0;
      depth -= c == ')' || c == ']' || c == '}' ? 1 : 0;
      ++at;
      if (depth == 0) {
        break;
      }
    }
    return at;
  }

  std::string_view source_;
  size_t at_ = 0;
  std::string out_;
};

}  // namespace

std::string adapt_template(std::string_view source) {
  return Adapter(source).run();
}

}  // namespace mlxcel
