#include "server/body.h"

#include "core/error.h"

#include <algorithm>
#include <cmath>

namespace mlxcel::server {

using nlohmann::json;

std::string kind_of(const json& value) {
  switch (value.type()) {
    case json::value_t::null:
      return "null";
    case json::value_t::object:
      return "an object";
    case json::value_t::array:
      return "an array";
    case json::value_t::string:
      return "a string";
    case json::value_t::boolean:
      return "a boolean";
    default:
      return "a number";
  }
}

RequestObject parse_object(std::string_view body) {
  // The strict reader first: it refuses what is too deep or repeats a key.
  json sorted = http::parse_body(body);
  return {std::move(sorted), nlohmann::ordered_json::parse(body)};
}

Body::Body(const json& object, std::string name)
    : object_(object), name_(std::move(name)) {
  if (!object.is_object()) {
    if (!name_.empty()) {
      refuse(name_, cat("must be an object, not ", kind_of(object)));
    }
    throw http::Failure::bad_request(
        cat("Request body must be an object, not ", kind_of(object)));
  }
}

void Body::refuse(std::string_view name, const std::string& why) {
  throw http::Failure::bad_request(
      cat("'", name, "' ", why), std::string(name));
}

const json* Body::find(std::string_view name) {
  known_.emplace(name);
  auto place = object_.find(name);
  return place == object_.end() || place->is_null() ? nullptr : &*place;
}

bool Body::flag(std::string_view name, bool fallback) {
  const json* value = find(name);
  if (value == nullptr) {
    return fallback;
  }
  if (!value->is_boolean()) {
    refuse(name, cat("must be true or false, not ", kind_of(*value)));
  }
  return value->get<bool>();
}

int64_t Body::integer(
    std::string_view name, int64_t fallback, int64_t least, int64_t most) {
  const json* value = find(name);
  if (value == nullptr) {
    return fallback;
  }
  // A float with an integer's value is what some clients send.
  bool whole = value->is_number_integer();
  if (value->is_number_float()) {
    double number = value->get<double>();
    whole = number == std::floor(number) && std::abs(number) < 9e15;
  }
  if (!whole) {
    refuse(
        name,
        cat("must be an integer, not ",
            value->is_number() ? value->dump() : kind_of(*value)));
  }
  bool huge =
      value->is_number_unsigned() &&
      value->get<uint64_t>() > uint64_t(std::numeric_limits<int64_t>::max());
  int64_t number = huge ? std::numeric_limits<int64_t>::max()
                   : value->is_number_float() ? int64_t(value->get<double>())
                                              : value->get<int64_t>();
  if (number < least || number > most) {
    refuse(
        name,
        most == std::numeric_limits<int64_t>::max()
            ? cat("is ", value->dump(), "; it must be at least ", least)
            : cat("is ",
                  value->dump(),
                  "; it must be from ",
                  least,
                  " to ",
                  most));
  }
  return number;
}

double Body::number(std::string_view name, double fallback) {
  const json* value = find(name);
  if (value == nullptr) {
    return fallback;
  }
  if (!value->is_number()) {
    refuse(name, cat("must be a number, not ", kind_of(*value)));
  }
  return value->get<double>();
}

std::optional<std::string> Body::text(std::string_view name) {
  const json* value = find(name);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_string()) {
    refuse(name, cat("must be a string, not ", kind_of(*value)));
  }
  return value->get<std::string>();
}

std::vector<std::string> Body::texts(std::string_view name) {
  const json* value = find(name);
  if (value == nullptr) {
    return {};
  }
  if (value->is_string()) {
    return {value->get<std::string>()};
  }
  if (!value->is_array()) {
    refuse(
        name,
        cat("must be a string or an array of strings, not ", kind_of(*value)));
  }
  std::vector<std::string> out;
  for (const json& entry : *value) {
    if (!entry.is_string()) {
      refuse(name, cat("must hold strings only, not ", kind_of(entry)));
    }
    out.push_back(entry.get<std::string>());
  }
  return out;
}

void Body::neutral(
    std::string_view name,
    std::initializer_list<json> values,
    std::string_view reason) {
  const json* value = find(name);
  if (value == nullptr ||
      std::find(values.begin(), values.end(), *value) != values.end()) {
    return;
  }
  refuse(
      name,
      values.size() == 0 ? cat("is not supported: ", reason, "; leave it out")
                         : cat("is not supported: ",
                               reason,
                               "; leave it out or give ",
                               values.begin()->dump()));
}

void Body::ignore(std::initializer_list<std::string_view> names) {
  for (std::string_view name : names) {
    known_.emplace(name);
  }
}

void Body::finish() const {
  for (const auto& [name, value] : object_.items()) {
    if (known_.contains(name) || value.is_null()) {
      continue;
    }
    std::string near = did_you_mean(name, {known_.begin(), known_.end()});
    std::string place = name_.empty() ? "this route" : cat("'", name_, "'");
    refuse(
        name, cat("is not a field of ", place, near.empty() ? "" : "; ", near));
  }
}

}  // namespace mlxcel::server
