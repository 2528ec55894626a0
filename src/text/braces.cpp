#include "text/braces.h"

#include "io/json.h"
#include "text/held_text.h"

namespace mlxcel {

namespace {

using Json = nlohmann::ordered_json;

class Reader {
 public:
  Reader(std::string_view text, std::string_view quote)
      : text_(text), quote_(quote) {}

  std::optional<std::string> run() {
    std::string out;
    if (!value(&out, 0)) {
      return std::nullopt;
    }
    spaces();
    return at_ == text_.size() ? std::optional(out) : std::nullopt;
  }

 private:
  void spaces() {
    while (at_ < text_.size() &&
           kSpaces.find(text_[at_]) != std::string_view::npos) {
      ++at_;
    }
  }
  bool take(std::string_view wanted) {
    spaces();
    if (!text_.substr(at_).starts_with(wanted)) {
      return false;
    }
    at_ += wanted.size();
    return true;
  }
  static void append(std::string_view text, std::string* out) {
    *out += Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  bool string(std::string* out) {
    size_t end = text_.find(quote_, at_);
    if (end == std::string_view::npos) {
      return false;
    }
    append(text_.substr(at_, end - at_), out);
    at_ = end + quote_.size();
    return true;
  }

  bool object(std::string* out, int depth) {
    *out += '{';
    for (bool first = true; !take("}"); first = false) {
      if (!first && !take(",")) {
        return false;
      }
      *out += first ? "" : ",";
      spaces();
      if (take(quote_)) {
        if (!string(out)) {
          return false;
        }
      } else {
        size_t end = std::min(text_.find(':', at_), text_.size());
        std::string_view key = without_end_space(text_.substr(at_, end - at_));
        if (key.size() >= 2 && key.front() == '"' && key.back() == '"') {
          key = key.substr(1, key.size() - 2);
        }
        append(key, out);
        at_ = end;
      }
      *out += ':';
      if (!take(":") || !value(out, depth + 1)) {
        return false;
      }
    }
    *out += '}';
    return true;
  }

  bool list(std::string* out, int depth) {
    *out += '[';
    for (bool first = true; !take("]"); first = false) {
      if (!first && !take(",")) {
        return false;
      }
      *out += first ? "" : ",";
      if (!value(out, depth + 1)) {
        return false;
      }
    }
    *out += ']';
    return true;
  }

  bool value(std::string* out, int depth) {
    if (depth > kMaxJsonDepth) {
      return false;
    }
    if (take(quote_)) {
      return string(out);
    }
    if (take("{")) {
      return object(out, depth);
    }
    if (take("[")) {
      return list(out, depth);
    }
    size_t end = std::min(text_.find_first_of(",}]", at_), text_.size());
    std::string_view bare = without_end_space(text_.substr(at_, end - at_));
    at_ = end;
    if (bare.empty()) {
      return false;
    }
    if (Json::accept(bare)) {
      *out += bare;
    } else {
      append(bare, out);
    }
    return true;
  }

  std::string_view text_, quote_;
  size_t at_ = 0;
};

}  // namespace

std::optional<std::string> braces_to_json(
    std::string_view text, std::string_view quote) {
  return Reader(text, quote).run();
}

}  // namespace mlxcel
