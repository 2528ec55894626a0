// SentencePiece models (tokenizer.model) as a tokenizer.json in memory.
#pragma once

#include "text/tokenizer_config.h"
#include "text/tokenizer_json.h"

#include <string>
#include <string_view>

namespace mlxcel {

// Reads the protobuf of sentencepiece_model.proto. Throws TextError that names
// the file and the field.
SentencePieceModel parse_sentencepiece(
    std::string_view bytes, const std::string& file);

// The whole tokenizer; tokenizer_config.json says whether BOS and EOS are
// added.
std::string sentencepiece_file_to_json(
    std::string_view bytes,
    const std::string& file,
    const TokenizerConfig& config);

}  // namespace mlxcel
