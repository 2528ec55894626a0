#include "text/json_schema.h"

#include "core/error.h"
#include "io/json.h"

#include <array>
#include <cstdlib>
#include <map>
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

[[noreturn]] void refuse(const std::string& place, const std::string& why) {
  throw TextError(
      "the JSON schema cannot be used",
      cat("at ", place.empty() ? "its root" : place, ": ", why),
      "change the schema there");
}

std::string below(const std::string& place, std::string_view name) {
  std::string out = place + '/';
  for (char c : name) {
    out += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
  }
  return out;
}

std::string shown(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() <= 60 ? text : text.substr(0, 57) + "...";
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
  explicit Preparer(const Json& root) : root_(root) {}

  Json run() {
    Json out = schema(root_, "", 0);
    if (!out.is_object()) {
      out = out == true ? Json::object() : Json({{"not", Json::object()}});
    }
    // Grows while its schemas are prepared.
    for (size_t i = 0; i < targets_.size(); ++i) {
      auto [place, target] = targets_[i];
      definitions_[cat("d", i)] = schema(*target, place, 0);
    }
    if (!definitions_.empty()) {
      out["$defs"] = std::move(definitions_);
    }
    out["x-guidance"] = {{"whitespace_pattern", kWhitespace}};
    return out;
  }

 private:
  Json schema(const Json& given, const std::string& place, int depth) {
    if (depth > kMaxJsonDepth) {
      refuse(place, cat("it is nested deeper than ", kMaxJsonDepth, " levels"));
    }
    if (++count_ > kMaxSchemas) {
      refuse(place, cat("it has more than ", kMaxSchemas, " schemas"));
    }
    if (given.is_boolean()) {
      return given;
    }
    if (!given.is_object()) {
      refuse(
          place, cat("a schema is an object or a boolean, not ", shown(given)));
    }
    Json out = Json::object();
    for (const auto& [name, value] : given.items()) {
      keyword(given, name, value, below(place, name), depth, &out);
    }
    return out;
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
        refuse(place, cat("a string is needed, not ", shown(value)));
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
      if (name == refused && !neutral(given, name, value)) {
        refuse(place, "no grammar can hold a text to this keyword");
      }
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
      refuse(place, cat(what, " is needed, not ", shown(value)));
    }
  }

  static Json type(const Json& value, const std::string& place) {
    for (const Json& entry : value.is_array() ? value : Json::array({value})) {
      bool known = false;
      for (const char* name : kTypes) {
        known = known || entry == name;
      }
      if (!known) {
        refuse(
            place,
            cat("there is no type ",
                shown(entry),
                "; types are ",
                fmt::format("{}", fmt::join(kTypes, ", "))));
      }
    }
    if (value.is_array() && value.empty()) {
      refuse(place, "the list of types is empty");
    }
    return value;
  }

  // Every schema that is referred to moves to one place under a plain name.
  std::string reference(const Json& value, const std::string& place) {
    if (!value.is_string()) {
      refuse(place, cat("a string is needed, not ", shown(value)));
    }
    const std::string& text = value.get_ref<const std::string&>();
    if (text == "#" || text == "#/") {
      return "#";
    }
    if (!text.starts_with("#/")) {
      refuse(
          place,
          cat("only references within the schema are followed (#/...), not ",
              shown(value)));
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
      refuse(place, cat("the schema has nothing at ", text));
    }
  }

  const Json& root_;
  int count_ = 0;
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
      refuse(
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

}  // namespace mlxcel
