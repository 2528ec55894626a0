#include "text/json_schema.h"

#include "core/error.h"
#include "io/json.h"
#include "text/schema_divisors.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <set>
#include <vector>

namespace mlxcel {

namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxSchemaBytes = size_t(256) << 10;
// Schemas after references are copied to one place.
constexpr int kMaxSchemas = 20'000;

// Between two tokens of JSON: a space, or at most two line ends with an
// indentation. Bounded, so that a model cannot go on with spaces for ever.
constexpr const char* kWhitespace = "(?: |(?:\\r?\\n){1,2}[ \\t]{0,20})";

// Formats that have a grammar. By the standard a format is an annotation unless
// a reader knows it, so others are left out.
constexpr std::array kFormats = {
    "date-time",
    "time",
    "date",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uuid",
    "uri"};

constexpr std::array kTypes = {
    "null", "boolean", "object", "array", "number", "integer", "string"};

enum class Value : uint8_t {
  schema,
  schemas,         // a list, not empty
  schema_map,      // by name
  schema_or_list,  // items: one for all, or one for each (before 2020-12)
  name_list,       // strings
  count,           // a whole number from 0 up
  number,
  number_or_flag,  // a flag in draft 4
  text,
  list,
  any,
};

struct Keyword {
  const char* name;
  Value value;
};

// JSON Schema 2020-12, core and validation vocabularies, with the older
// spelling of tuples.
constexpr Keyword kKeywords[] = {
    {"anyOf", Value::schemas},
    {"oneOf", Value::schemas},
    {"allOf", Value::schemas},
    {"const", Value::any},
    {"enum", Value::list},
    {"items", Value::schema_or_list},
    {"additionalItems", Value::schema},
    {"prefixItems", Value::schemas},
    {"minItems", Value::count},
    {"maxItems", Value::count},
    {"properties", Value::schema_map},
    {"additionalProperties", Value::schema},
    {"patternProperties", Value::schema_map},
    {"required", Value::name_list},
    {"minProperties", Value::count},
    {"maxProperties", Value::count},
    {"minLength", Value::count},
    {"maxLength", Value::count},
    {"pattern", Value::text},
    {"minimum", Value::number},
    {"maximum", Value::number},
    {"exclusiveMinimum", Value::number_or_flag},
    {"exclusiveMaximum", Value::number_or_flag},
    {"multipleOf", Value::number},
};

// What a grammar cannot express.
constexpr std::array kRefused = {
    "not",
    "if",
    "uniqueItems",
    "contains",
    "propertyNames",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$recursiveRef"};

std::string below(const std::string& place, std::string_view name) {
  std::string out = place + '/';
  for (char c : name) {
    out += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
  }
  return out;
}

bool is_count(const Json& value) {
  return value.is_number_unsigned() ||
         (value.is_number_float() && value.get<double>() >= 0 &&
          value.get<double>() < 1e15 &&
          value.get<double>() == double(int64_t(value.get<double>())));
}

// Bounds that every 64-bit integer keeps, as generators of schemas give them
// for int64, uint64, float and double: they would only make a grammar larger.
bool is_wide_bound(const std::string& name, const Json& value) {
  if (!value.is_number()) {
    return false;
  }
  // Exact for integers of 64 bits where it has as many digits.
  long double bound =
      value.is_number_unsigned()  ? (long double)value.get<uint64_t>()
      : value.is_number_integer() ? (long double)value.get<int64_t>()
                                  : (long double)value.get<double>();
  constexpr long double kLeast = -0x1p63L, kMost = 0x1p63L - 1;
  return name == "minimum"            ? bound <= kLeast
         : name == "maximum"          ? bound >= kMost
         : name == "exclusiveMinimum" ? bound < kLeast
         : name == "exclusiveMaximum" ? bound > kMost
                                      : false;
}

// A flag of draft 4 that belongs to such a bound.
bool is_flag_of_wide_bound(const Json& schema, const std::string& name) {
  bool lower = name == "exclusiveMinimum", upper = name == "exclusiveMaximum";
  if ((!lower && !upper) || !schema[name].is_boolean()) {
    return false;
  }
  const char* bound = lower ? "minimum" : "maximum";
  auto found = schema.find(bound);
  return found != schema.end() && is_wide_bound(bound, *found);
}

// A keyword beyond the grammar's means that changes nothing here.
bool neutral(const Json& schema, const std::string& name, const Json& value) {
  if (name == "uniqueItems") {
    auto most = schema.find("maxItems");
    return value == false ||
           (most != schema.end() && is_count(*most) && *most <= 1);
  }
  if (name == "propertyNames") {
    return value == true || value == Json::object() ||
           value == Json({{"type", "string"}});
  }
  if (name == "unevaluatedItems" || name == "unevaluatedProperties") {
    return value == true || value == Json::object();
  }
  if (name.starts_with("depend")) {
    return value == Json::object();
  }
  return name == "not" && value == false;
}

class Preparer {
 public:
  // `sizes_only`: keywords without a grammar are somebody else's to refuse.
  explicit Preparer(const Json& root, bool sizes_only = false)
      : root_(root), sizes_only_(sizes_only) {}

  Json run() {
    if (root_ == false) {
      refuse_schema("", "it is false, which no value meets");
    }
    Json out = schema(root_, "", 0);
    if (!out.is_object()) {
      out = Json::object();
    }
    // Grows while its schemas are prepared.
    for (size_t i = 0; i < targets_.size(); ++i) {
      auto [place, target] = targets_[i];
      definitions_[cat("d", i)] = schema(*target, place, 0);
    }
    remainders_ = divisors_.check();
    if (!definitions_.empty()) {
      out["$defs"] = std::move(definitions_);
    }
    out["x-guidance"] = {{"whitespace_pattern", kWhitespace}};
    return out;
  }
  uint64_t remainders() const {
    return remainders_;
  }

 private:
  Json schema(const Json& given, const std::string& place, int depth) {
    if (depth > kMaxJsonDepth) {
      refuse_schema(
          place, cat("it is nested deeper than ", kMaxJsonDepth, " levels"));
    }
    if (++count_ > kMaxSchemas) {
      refuse_schema(place, cat("it has more than ", kMaxSchemas, " schemas"));
    }
    if (given.is_boolean()) {
      return given;
    }
    if (!given.is_object()) {
      refuse_schema(
          place,
          cat("a schema is an object or a boolean, not ", shown_json(given)));
    }
    Json out = Json::object();
    for (const auto& [name, value] : given.items()) {
      keyword(given, name, value, below(place, name), depth, &out);
    }
    note_joins(out);
    check_least_members(given, place);
    return out;
  }

  void note_joins(const Json& schema) {
    for (const char* name : {"$ref", "allOf", "anyOf", "oneOf"}) {
      auto found = schema.find(name);
      if (found != schema.end()) {
        divisors_.add_uses(found->is_array() ? found->size() : 1);
        if (schema.size() > 1 || name == std::string_view("allOf")) {
          divisors_.set_joined();
        }
      }
    }
    if (schema.contains("patternProperties")) {
      divisors_.set_joined();
    }
  }

  // A grammar does not count different names: the same one could be written
  // again and again. One more than those that have to be there is a new one.
  static void check_least_members(const Json& given, const std::string& place) {
    auto least = given.find("minProperties");
    if (least == given.end() || !is_count(*least)) {
      return;
    }
    auto others = given.find("additionalProperties");
    auto patterns = given.find("patternProperties");
    bool fixed = others != given.end() && *others == false &&
                 (patterns == given.end() || patterns->empty());
    std::set<std::string> required;
    if (auto names = given.find("required"); names != given.end()) {
      for (const Json& name : *names) {
        required.insert(name.get<std::string>());
      }
    }
    if (!fixed && least->get<double>() > double(required.size() + 1)) {
      refuse_schema(
          below(place, "minProperties"),
          cat("no grammar can count different names: where names are free it "
              "may be one more than those in required, ",
              required.size() + 1,
              " here"));
    }
  }

  void keyword(
      const Json& given,
      const std::string& name,
      const Json& value,
      const std::string& place,
      int depth,
      Json* out) {
    if (name == "$ref") {
      (*out)[name] = reference(value, place);
      return;
    }
    if (name == "type") {
      (*out)[name] = type(value, place);
      return;
    }
    if (name == "$schema" && value.is_string()) {
      (*out)[name] = value;
      return;
    }
    if (name == "format") {
      if (!value.is_string()) {
        refuse_schema(
            place, cat("a string is needed, not ", shown_json(value)));
      }
      for (const char* known : kFormats) {
        if (value == known) {
          (*out)[name] = value;
        }
      }
      return;
    }
    if (is_wide_bound(name, value) || is_flag_of_wide_bound(given, name)) {
      return;
    }
    for (const char* refused : kRefused) {
      if (name == refused && !sizes_only_ && !neutral(given, name, value)) {
        refuse_schema(place, "no grammar can hold a text to this keyword");
      }
    }
    if (name == "multipleOf") {
      divisors_.add(value, place);
    }
    for (const Keyword& known : kKeywords) {
      if (name == known.name) {
        (*out)[name] = checked(known.value, value, place, depth);
      }
    }
  }

  Json checked(
      Value kind, const Json& value, const std::string& place, int depth) {
    switch (kind) {
      case Value::schema:
        return schema(value, place, depth + 1);
      case Value::schema_or_list:
        return value.is_array() ? list(value, place, depth)
                                : schema(value, place, depth + 1);
      case Value::schemas:
        need(
            value.is_array() && !value.empty(),
            "a list of schemas",
            value,
            place);
        return list(value, place, depth);
      case Value::schema_map: {
        need(value.is_object(), "an object of schemas", value, place);
        Json out = Json::object();
        for (const auto& [name, entry] : value.items()) {
          out[name] = schema(entry, below(place, name), depth + 1);
        }
        return out;
      }
      case Value::name_list:
        need(value.is_array(), "a list of strings", value, place);
        for (const Json& entry : value) {
          need(entry.is_string(), "a list of strings", value, place);
        }
        return value;
      case Value::count:
        need(is_count(value), "a whole number from 0 up", value, place);
        return uint64_t(value.get<double>());
      case Value::number:
        need(value.is_number(), "a number", value, place);
        return value;
      case Value::number_or_flag:
        need(value.is_number() || value.is_boolean(), "a number", value, place);
        return value;
      case Value::text:
        need(value.is_string(), "a string", value, place);
        return value;
      case Value::list:
        need(
            value.is_array() && !value.empty(),
            "a list of values",
            value,
            place);
        return value;
      case Value::any:
        return value;
    }
    return value;
  }

  Json list(const Json& value, const std::string& place, int depth) {
    Json out = Json::array();
    for (size_t i = 0; i < value.size(); ++i) {
      out.push_back(
          schema(value[i], below(place, std::to_string(i)), depth + 1));
    }
    return out;
  }

  static void need(
      bool good,
      const char* what,
      const Json& value,
      const std::string& place) {
    if (!good) {
      refuse_schema(place, cat(what, " is needed, not ", shown_json(value)));
    }
  }

  static Json type(const Json& value, const std::string& place) {
    for (const Json& entry : value.is_array() ? value : Json::array({value})) {
      bool known = false;
      for (const char* name : kTypes) {
        known = known || entry == name;
      }
      if (!known) {
        refuse_schema(
            place,
            cat("there is no type ",
                shown_json(entry),
                "; types are ",
                fmt::format("{}", fmt::join(kTypes, ", "))));
      }
    }
    if (value.is_array() && value.empty()) {
      refuse_schema(place, "the list of types is empty");
    }
    return value;
  }

  // Every schema that is referred to moves to one place under a plain name.
  std::string reference(const Json& value, const std::string& place) {
    if (!value.is_string()) {
      refuse_schema(place, cat("a string is needed, not ", shown_json(value)));
    }
    const std::string& text = value.get_ref<const std::string&>();
    if (text == "#" || text == "#/") {
      return "#";
    }
    if (!text.starts_with("#/")) {
      refuse_schema(
          place,
          cat("only references within the schema are followed (#/...), not ",
              shown_json(value)));
    }
    auto [found, fresh] = names_.try_emplace(text, targets_.size());
    if (fresh) {
      targets_.emplace_back(text.substr(1), find(text, place));
    }
    return "#/$defs/d" + std::to_string(found->second);
  }

  // RFC 6901, with the percent escapes of a URI fragment.
  const Json* find(const std::string& text, const std::string& place) const {
    std::string pointer;
    for (size_t i = 1; i < text.size(); ++i) {
      if (text[i] == '%' && i + 2 < text.size()) {
        pointer +=
            char(std::strtol(text.substr(i + 1, 2).c_str(), nullptr, 16));
        i += 2;
      } else {
        pointer += text[i];
      }
    }
    try {
      return &root_.at(Json::json_pointer(pointer));
    } catch (const Json::exception&) {
      refuse_schema(place, cat("the schema has nothing at ", text));
    }
  }

  const Json& root_;
  bool sizes_only_;
  int count_ = 0;
  SchemaDivisors divisors_;
  uint64_t remainders_ = 0;
  std::map<std::string, size_t> names_;  // by reference, into targets_
  std::vector<std::pair<std::string, const Json*>> targets_;
  Json definitions_ = Json::object();
};

}  // namespace

Json parse_json_schema(std::string_view text) {
  if (text.size() > kMaxSchemaBytes) {
    throw TextError(
        "the JSON schema is too large",
        cat("it has ", text.size(), " bytes, at most ", kMaxSchemaBytes),
        "give a smaller one");
  }
  auto depth = [](int level, auto, const auto&) {
    if (level > 4 * kMaxJsonDepth) {
      refuse_schema(
          "", cat("it is nested deeper than ", 4 * kMaxJsonDepth, " levels"));
    }
    return true;
  };
  try {
    return prepare_json_schema(Json::parse(text, depth));
  } catch (const Json::parse_error& error) {
    throw TextError(
        "the JSON schema cannot be used",
        cat("it is no JSON: byte ", error.byte, " is unexpected"),
        "correct it there");
  }
}

Json prepare_json_schema(const Json& schema) {
  return Preparer(schema).run();
}

namespace {

// The end of the JSON object that begins there; npos: it does not end.
size_t end_of_object(std::string_view text, size_t begin) {
  bool quoted = false;
  int depth = 0;
  for (size_t i = begin; i < text.size(); ++i) {
    char c = text[i];
    if (quoted && c == '\\') {
      ++i;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (!quoted && (c == '{' || c == '}')) {
      depth += c == '{' ? 1 : -1;
      if (depth == 0) {
        return i + 1;
      }
    }
  }
  return text.npos;
}

}  // namespace

void check_embedded_schemas(std::string_view lark) {
  constexpr std::string_view kMark = "%json";
  constexpr size_t kMostWork = size_t(64) << 20;  // bytes; marks may be nested
  size_t work = 0;
  uint64_t remainders = 0;
  for (size_t at = lark.find(kMark); at != lark.npos;
       at = lark.find(kMark, at + 1)) {
    size_t begin = lark.find_first_not_of(" \t\r\n", at + kMark.size());
    if (begin == lark.npos || lark[begin] != '{') {
      continue;
    }
    size_t end = std::min(end_of_object(lark, begin), lark.size());
    work += end - begin;
    if (work > kMostWork) {
      refuse_schema("", "the grammar embeds too many schemas");
    }
    Json schema = Json::parse(lark.substr(begin, end - begin), nullptr, false);
    if (schema.is_object()) {
      Preparer preparer(schema, true);
      preparer.run();
      remainders += preparer.remainders();
      SchemaDivisors::check_sum(remainders);
    }
  }
}

}  // namespace mlxcel
