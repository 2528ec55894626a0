// Builds the text of a tokenizer.json from the parts of other formats.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mlxcel {

struct AddedTokenSpec {
  int32_t id = 0;
  std::string content;
  bool special = false;
};

// How a byte-level BPE cuts text into words.
struct BytePreTokenizer {
  std::vector<std::string> patterns;  // applied in order; each match is a word
  bool digits = false;                // every digit alone, before the patterns
  bool gpt2_split = false;            // GPT-2's own pattern, at the end
};

struct ByteBpe {
  std::vector<std::string> tokens;  // in the byte-level alphabet, by id
  std::vector<std::pair<std::string, std::string>> merges;
  std::vector<AddedTokenSpec> added;
  BytePreTokenizer pre_tokenizer;
  std::string normalizer;      // "NFC", or "" for none
  bool ignore_merges = false;  // whole words of the vocabulary stay whole
  std::optional<std::pair<std::string, int32_t>> bos;  // put in front
};

std::string byte_bpe_json(const ByteBpe& model);

// A byte in the byte-level alphabet, as UTF-8: printable Latin-1 bytes stand
// for themselves, the rest are 256 and up.
std::string byte_level_char(uint8_t byte);
std::string byte_level_text(std::string_view bytes);

// SentencePiece models.
enum class PieceType : uint8_t {
  normal = 1,
  unknown = 2,
  control = 3,
  user_defined = 4,
  unused = 5,
  byte = 6,
};

struct Piece {
  std::string text;
  float score = 0;
  PieceType type = PieceType::normal;
};

struct SentencePieceModel {
  std::vector<Piece> pieces;  // by id
  bool unigram = false;       // else BPE
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = false;
  std::string precompiled_charsmap;   // of the normalizer; "" for none
  std::vector<AddedTokenSpec> added;  // beyond the pieces
  std::optional<int32_t> bos, eos;    // put in front, at the end
};

std::string sentencepiece_json(const SentencePieceModel& model);

}  // namespace mlxcel
