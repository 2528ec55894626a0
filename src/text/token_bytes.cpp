#include "text/token_bytes.h"

#include "text/tokenizer.h"

#include <array>
#include <charconv>
#include <optional>
#include <span>

namespace mlxcel {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD
constexpr std::string_view kSpaceMark = "\xE2\x96\x81";    // U+2581

// Bytes at `at` that belong to one character, or to the beginning of one that
// breaks off there; *whole tells them apart. Unicode 15, table 3-7.
size_t character_size(std::string_view text, size_t at, bool* whole) {
  auto byte = [&](size_t i) {
    return i < text.size() ? uint8_t(text[i]) : uint8_t(0);
  };
  uint8_t first = byte(at);
  size_t size = first < 0x80                    ? 1
                : first >= 0xC2 && first < 0xE0 ? 2
                : first >= 0xE0 && first < 0xF0 ? 3
                : first >= 0xF0 && first < 0xF5 ? 4
                                                : 0;
  uint8_t low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  uint8_t high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  size_t got = 1;
  while (got < size && byte(at + got) >= low && byte(at + got) <= high) {
    ++got;
    low = 0x80;
    high = 0xBF;
  }
  *whole = got == size;
  return got;
}

// GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes are
// U+0100 and up in their order.
constexpr std::array<int16_t, 0x144> byte_alphabet() {
  std::array<int16_t, 0x144> bytes{};
  int16_t next = 0x100;
  for (int16_t& byte : bytes) {
    byte = -1;
  }
  for (int16_t byte = 0; byte < 256; ++byte) {
    bool plain = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) ||
                 byte >= 174;
    bytes[size_t(plain ? byte : next++)] = byte;
  }
  return bytes;
}

// Nothing when a character is outside the alphabet.
std::optional<std::string> from_byte_alphabet(std::string_view spelling) {
  static constexpr auto kBytes = byte_alphabet();
  std::string out;
  for (size_t at = 0; at < spelling.size();) {
    bool whole = false;
    size_t size = character_size(spelling, at, &whole);
    unsigned code = uint8_t(spelling[at]);
    if (!whole || size > 2) {
      return std::nullopt;
    }
    if (size == 2) {
      code = (code & 0x1F) << 6 | (uint8_t(spelling[at + 1]) & 0x3F);
    }
    if (code >= kBytes.size() || kBytes[code] < 0) {
      return std::nullopt;
    }
    out += char(kBytes[code]);
    at += size;
  }
  return out;
}

// "<0xE6>"
std::optional<std::string> from_byte_token(std::string_view spelling) {
  if (spelling.size() != 6 || !spelling.starts_with("<0x") ||
      spelling.back() != '>') {
    return std::nullopt;
  }
  unsigned byte = 0;
  const char* end = spelling.data() + 5;
  auto [rest, error] = std::from_chars(spelling.data() + 3, end, byte, 16);
  if (error != std::errc() || rest != end) {
    return std::nullopt;
  }
  return std::string(1, char(byte));
}

}  // namespace

bool is_utf8(std::string_view bytes) {
  for (size_t at = 0; at < bytes.size();) {
    bool whole = false;
    at += character_size(bytes, at, &whole);
    if (!whole) {
      return false;
    }
  }
  return true;
}

std::string to_utf8(std::string_view bytes) {
  std::string out;
  for (size_t at = 0; at < bytes.size();) {
    bool whole = false;
    size_t size = character_size(bytes, at, &whole);
    out += whole ? bytes.substr(at, size) : kReplacement;
    at += size;
  }
  return out;
}

std::string token_bytes(const Tokenizer& tokenizer, int32_t id) {
  std::string decoded = tokenizer.decode(std::span(&id, 1), false);
  bool marked = decoded.find(kReplacement) != std::string::npos;
  std::string spelling = tokenizer.token_text(id);
  if (spelling == decoded) {
    return decoded;
  }
  // The spelling counts where the decoder agrees with what it is taken for.
  if (marked) {
    for (const auto& bytes :
         {from_byte_token(spelling), from_byte_alphabet(spelling)}) {
      if (bytes && to_utf8(*bytes) == decoded) {
        return *bytes;
      }
    }
  }
  // Decoders of this form cut the space at the beginning of a text.
  if (spelling.starts_with(kSpaceMark)) {
    std::string rest;
    for (size_t at = 0; at < spelling.size();) {
      bool mark = spelling.compare(at, kSpaceMark.size(), kSpaceMark) == 0;
      rest += mark ? ' ' : spelling[at];
      at += mark ? kSpaceMark.size() : 1;
    }
    if (rest.substr(1) == decoded) {
      return rest;
    }
  }
  return decoded;
}

}  // namespace mlxcel
