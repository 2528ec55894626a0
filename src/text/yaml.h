// YAML 1.2 documents, with the line and column of every value for messages.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace mlxcel {

struct YamlDocument {
  nlohmann::json value;
  // "line 3, column 5" of the value at a JSON pointer ("/operations/0/op"), or
  // of the nearest enclosing value that has a place; "" for none.
  std::string place(std::string pointer) const;

  nlohmann::json positions;  // pointer -> [line, column], from 1
  // pointer -> "not a number" or "infinite"; such values are null.
  nlohmann::json not_finite;
};

// One document. Throws TextError that names `file`, line and column: syntax,
// duplicate keys, unknown tags, aliases that expand beyond all reason.
YamlDocument parse_yaml(std::string_view text, const std::string& file);

}  // namespace mlxcel
