#include "http/url.h"

namespace mlxcel::http {

namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') {
    return c - '0';
  }
  char lower = char(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

}  // namespace

std::optional<std::string> percent_decode(
    std::string_view text, bool plus_is_space) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%') {
      if (i + 2 >= text.size()) {
        return std::nullopt;
      }
      int high = hex_digit(text[i + 1]);
      int low = hex_digit(text[i + 2]);
      if (high < 0 || low < 0 || (high | low) == 0) {
        return std::nullopt;
      }
      out.push_back(char(high << 4 | low));
      i += 2;
    } else {
      out.push_back(plus_is_space && text[i] == '+' ? ' ' : text[i]);
    }
  }
  return out;
}

std::optional<Fields> parse_query(std::string_view query) {
  Fields fields;
  while (!query.empty()) {
    size_t end = query.find('&');
    std::string_view part = query.substr(0, end);
    query = end == std::string_view::npos ? "" : query.substr(end + 1);
    if (part.empty()) {
      continue;
    }
    size_t equals = part.find('=');
    auto name = percent_decode(part.substr(0, equals), true);
    auto value = percent_decode(
        equals == std::string_view::npos ? "" : part.substr(equals + 1), true);
    if (!name || !value) {
      return std::nullopt;
    }
    fields.emplace_back(std::move(*name), std::move(*value));
  }
  return fields;
}

}  // namespace mlxcel::http
