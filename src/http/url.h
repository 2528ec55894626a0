// Request targets.
#pragma once

#include "http/message.h"

#include <optional>
#include <string>
#include <string_view>

namespace mlxcel::http {

// "%41" to "A", in queries also "+" to " ". Empty when a % is not followed by
// two hexadecimal digits, or stands for a zero byte.
std::optional<std::string> percent_decode(
    std::string_view text, bool plus_is_space);

// "a=1&b" to {{"a","1"},{"b",""}}; empty when a part does not decode.
std::optional<Fields> parse_query(std::string_view query);

}  // namespace mlxcel::http
