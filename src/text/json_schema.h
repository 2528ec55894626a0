// JSON schemas from requests, checked before they are compiled to a grammar.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace mlxcel {

// A schema that the grammar compiler takes: keywords of the wrong type,
// keywords that no grammar can express (uniqueItems, not, ...) and references
// that lead nowhere are refused with the place as a JSON pointer; keywords that
// change nothing are left out. Throws TextError.
nlohmann::ordered_json parse_json_schema(std::string_view text);
nlohmann::ordered_json prepare_json_schema(
    const nlohmann::ordered_json& schema);

// Refuses schemas behind %json in a Lark grammar that would take too long to
// compile. Throws TextError.
void check_embedded_schemas(std::string_view lark);

}  // namespace mlxcel
