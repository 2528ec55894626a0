// Rank files (.tiktoken) as a tokenizer.json in memory: a line a token, base64
// of its bytes and its rank, which is also its id.
#pragma once

#include "text/tokenizer_config.h"

#include <string>
#include <string_view>

namespace mlxcel {

// Whether the bytes look like a rank file; SentencePiece models bear the same
// name, tokenizer.model.
bool is_tiktoken(std::string_view bytes);

// The way to cut words and the special tokens follow the class that
// tokenizer_config.json names. Throws TextError that names the file and the
// line.
std::string tiktoken_to_json(
    std::string_view bytes,
    const std::string& file,
    const TokenizerConfig& config);

}  // namespace mlxcel
