// As io/json.h reads JSON, for objects whose keys have an order that counts.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace mlxcel {

// Keys stay in the text's order. `file` only names it in messages. Throws
// ConfigError. Looking a key up takes time linear in their number: not for
// large objects.
nlohmann::ordered_json parse_ordered_json(
    std::string_view text, const std::string& file);

}  // namespace mlxcel
