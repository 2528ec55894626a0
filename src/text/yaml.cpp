#include "text/yaml.h"

#include "core/error.h"
#include "textkit.h"

#include <algorithm>
#include <vector>

namespace mlxcel {

using nlohmann::json;

namespace {

void append(void* user, const void* data, size_t size) {
  static_cast<std::string*>(user)->append(static_cast<const char*>(data), size);
}

// The text's lines; \r, \n and both together end one.
std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (true) {
    size_t end = text.find_first_of("\r\n");
    lines.push_back(text.substr(0, end));
    if (end == std::string_view::npos) {
      return lines;
    }
    bool both = text.substr(end, 2) == "\r\n";
    text.remove_prefix(end + (both ? 2 : 1));
  }
}

// What stands from a column, in characters from 1, to the end of the line.
std::string_view from_column(std::string_view line, int64_t column) {
  size_t at = 0;
  while (column > 1 && at < line.size()) {
    ++at;
    while (at < line.size() && (uint8_t(line[at]) & 0xC0) == 0x80) {
      ++at;  // the rest of one character's UTF-8
    }
    --column;
  }
  return line.substr(at);
}

void skip_digits(std::string_view& text, std::string_view digits) {
  text.remove_prefix(std::min(text.find_first_not_of(digits), text.size()));
}

// A number as the core schema of YAML 1.2 has it (10.3.2): [-+]?[0-9]+,
// 0o[0-7]+, 0x[0-9a-fA-F]+, or a decimal fraction with an exponent. The parser
// also takes 1_000, 0b11 and -0x10, which are texts by that schema.
bool is_core_number(std::string_view word) {
  constexpr std::string_view kDecimal = "0123456789";
  for (auto [prefix, digits] :
       {std::pair<std::string_view, std::string_view>{"0o", "01234567"},
        {"0x", "0123456789abcdefABCDEF"}}) {
    if (word.starts_with(prefix)) {
      word.remove_prefix(2);
      return !word.empty() && word.find_first_not_of(digits) == word.npos;
    }
  }
  auto skip_sign = [&] {
    if (word.starts_with("-") || word.starts_with("+")) {
      word.remove_prefix(1);
    }
  };
  skip_sign();
  size_t length = word.size();
  skip_digits(word, kDecimal);
  size_t whole = length - word.size();
  size_t fraction = 0;
  if (word.starts_with(".")) {
    word.remove_prefix(1);
    length = word.size();
    skip_digits(word, kDecimal);
    fraction = length - word.size();
  }
  if (whole + fraction == 0) {
    return false;
  }
  if (word.starts_with("e") || word.starts_with("E")) {
    word.remove_prefix(1);
    skip_sign();
    return !word.empty() && word.find_first_not_of(kDecimal) == word.npos;
  }
  return word.empty();
}

// The number at the beginning of `text`, however it is spelled; empty for what
// is none there, as an alias or a quoted text with a tag.
std::string_view number_word(std::string_view text) {
  while (text.starts_with("&") || text.starts_with("!")) {
    text.remove_prefix(std::min(text.find_first_of(" \t"), text.size()));
    text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  }
  return text.find_first_of("+-.0123456789") == 0
             ? text.substr(0, text.find_first_of(" \t,[]{}"))
             : std::string_view();
}

// Turns numbers of older versions back into the texts that they are.
void keep_core_numbers(
    json& value,
    const std::string& pointer,
    const json& positions,
    const std::vector<std::string_view>& lines) {
  if (value.is_object()) {
    for (auto& [key, member] : value.items()) {
      std::string escaped;
      for (char c : key) {
        escaped += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
      }
      keep_core_numbers(member, pointer + "/" + escaped, positions, lines);
    }
  } else if (value.is_array()) {
    for (size_t i = 0; i < value.size(); ++i) {
      keep_core_numbers(value[i], cat(pointer, "/", i), positions, lines);
    }
  } else if (value.is_number()) {
    auto place = positions.find(pointer);
    size_t line = place == positions.end() ? 0 : place->at(0).get<size_t>();
    if (line == 0 || line > lines.size()) {
      return;
    }
    std::string_view word =
        number_word(from_column(lines[line - 1], place->at(1).get<int64_t>()));
    if (!word.empty() && !is_core_number(word)) {
      value = std::string(word);
    }
  }
}

// The parser counts what a document may cost, and says so in terms of its own
// options: "budget breached: Depth { depth: 65 } at line 1, column 67".
[[noreturn]] void refuse_too_much(
    const std::string& file, std::string_view breach) {
  std::string_view kind = breach.substr(0, breach.find(' '));
  size_t at = breach.find(" at ");
  std::string place(at == breach.npos ? std::string_view() : breach.substr(at));
  if (kind == "Documents") {
    throw TextError(
        cat("cannot read ", file),
        cat("it holds more than one YAML document: the second begins", place),
        "keep one document in the file, without a line --- behind it");
  }
  struct Limit {
    std::string_view kind, what;
  };
  constexpr Limit kLimits[] = {
      {"Depth", "is nested too deeply"},
      {"Nodes", "has too many values"},
      {"Aliases", "has too many aliases (*name)"},
      {"Anchors", "has too many anchors (&name)"},
      {"Events", "has too many values"}};
  std::string_view what = "is too large";
  for (const Limit& limit : kLimits) {
    what = limit.kind == kind ? limit.what : what;
  }
  throw TextError(
      cat("cannot read ", file),
      cat("it ", what, place),
      "check that this is the file you meant, or write it more simply");
}

}  // namespace

std::string YamlDocument::place(std::string pointer) const {
  while (true) {
    auto found = positions.find(pointer);
    if (found != positions.end()) {
      return cat(
          "line ",
          found->at(0).get<int64_t>(),
          ", column ",
          found->at(1).get<int64_t>());
    }
    size_t slash = pointer.rfind('/');
    if (slash == std::string::npos) {
      return {};
    }
    pointer.resize(slash);
  }
}

YamlDocument parse_yaml(std::string_view text, const std::string& file) {
  std::string result;
  int code = tk_yaml_to_json(text.data(), text.size(), append, &result);
  if (code != TK_OK) {
    constexpr std::string_view kBreach = "budget breached: ";
    if (result.starts_with(kBreach)) {
      refuse_too_much(file, std::string_view(result).substr(kBreach.size()));
    }
    // Advice of the parser to programmers.
    constexpr std::string_view kAside =
        ", set DuplicateKeyPolicy in Options if acceptable";
    if (size_t at = result.find(kAside); at != std::string::npos) {
      result.erase(at, kAside.size());
    }
    throw TextError(
        cat("cannot read ", file),
        cat("it is not valid YAML: ", result),
        "correct the file at the place named");
  }
  json parsed = json::parse(result);
  keep_core_numbers(parsed["value"], "", parsed["positions"], lines_of(text));
  return {
      std::move(parsed["value"]),
      std::move(parsed["positions"]),
      std::move(parsed["not_finite"])};
}

}  // namespace mlxcel
