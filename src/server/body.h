// Reads the fields of a request's JSON object. Every field has to be read,
// stand at a value that changes nothing, or be named as ignored: what is left
// is refused by name, so that no wish is dropped in silence.
#pragma once

#include "http/failure.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace mlxcel::server {

// A request's JSON object as Body reads it, and with its keys in the order in
// which they came: schemas and templates follow it.
struct RequestObject {
  nlohmann::json sorted;
  nlohmann::ordered_json ordered;
};
// Throws Failure for a body that is no JSON object.
RequestObject parse_object(std::string_view body);

class Body {
 public:
  // `object` outlives the reader; `name`: the field that it stands in, "" for
  // the whole body. Throws Failure when it is no object.
  explicit Body(const nlohmann::json& object, std::string name = {});

  // The field's value; null and absent fields give a null pointer.
  const nlohmann::json* find(std::string_view name);
  bool flag(std::string_view name, bool fallback);
  int64_t integer(
      std::string_view name,
      int64_t fallback,
      int64_t least = std::numeric_limits<int64_t>::min(),
      int64_t most = std::numeric_limits<int64_t>::max());
  double number(std::string_view name, double fallback);
  std::optional<std::string> text(std::string_view name);
  // A string or a list of strings.
  std::vector<std::string> texts(std::string_view name);

  // Accepts the field only at one of these values.
  void neutral(
      std::string_view name,
      std::initializer_list<nlohmann::json> values,
      std::string_view reason = "this server has no equivalent");
  // Fields that say something about the client, not about the answer.
  void ignore(std::initializer_list<std::string_view> names);

  // Throws Failure for the first field that nobody read.
  void finish() const;

  [[noreturn]] static void refuse(
      std::string_view name, const std::string& why);

 private:
  const nlohmann::json& object_;
  std::string name_;
  std::set<std::string, std::less<>> known_;
};

// For messages: "a string", "an array".
std::string kind_of(const nlohmann::json& value);

}  // namespace mlxcel::server
