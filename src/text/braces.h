// Gemma's notation of arguments: {key:value,...}, with marks around strings.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace mlxcel {

// As JSON; nothing when the text is not in this notation.
std::optional<std::string> braces_to_json(
    std::string_view text, std::string_view quote);

}  // namespace mlxcel
