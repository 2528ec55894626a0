// What one token stands for, in bytes: a token may be a part of a character.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace mlxcel {

class Tokenizer;

// The token's bytes within a text: byte-level alphabets and byte tokens
// (<0xE6>) undone, a leading space kept. Special tokens by their names; "" for
// an id outside the vocabulary. Where a decoder joins tokens in another way,
// what it makes of this one alone.
std::string token_bytes(const Tokenizer& tokenizer, int32_t id);

// Whether the byte is one of a character's later ones in UTF-8.
inline bool continues_character(char byte) {
  return (byte & 0xC0) == 0x80;
}
// Whether it is well-formed UTF-8.
bool is_utf8(std::string_view bytes);
// With U+FFFD for each maximal ill-formed part.
std::string to_utf8(std::string_view bytes);

}  // namespace mlxcel
